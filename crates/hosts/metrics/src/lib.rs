//! Metrics: what hosts report ([`burst_control::activity::HostReport`]), in the formats of OpenMetrics and Prometheus, over HTTP.
//!
//! [`families`] is the table of all metrics, `samples` fills it from reports, [`exposition`] writes it as text. [`server`] is a
//! small HTTP server in a thread of its own, which asks for reports when it is scraped; [`connection`] is one scraper's
//! connection. Scrapers are not trusted: [`audience`] decides what each may see.

#![forbid(unsafe_code)]

pub mod audience;
pub mod connection;
pub mod exposition;
pub mod families;
mod samples;
pub mod server;
