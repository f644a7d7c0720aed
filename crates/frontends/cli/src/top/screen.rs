//! The screen of `burst top`, from 80 columns on, in colour or without.

use super::model::{QpRow, SortBy, TopModel};
use burst_base::Reason;
use burst_control::activity::{state_name, type_name};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row, Table};

/// Ports and workers that are shown.
const PORTS_MAX: usize = 8;

/// What the user has chosen.
#[derive(Debug)]
pub struct ScreenState {
    /// Column by which queue pairs are sorted.
    pub sort: SortBy,
    /// Text that rows must have.
    pub filter: String,
    /// Whether keys are letters of the filter.
    pub is_typing: bool,
    /// Whether nothing is asked.
    pub is_frozen: bool,
    /// Place of the selected queue pair.
    pub selected: usize,
    /// Whether the selected queue pair is shown alone.
    pub is_detailed: bool,
    /// Why there is nothing new.
    pub trouble: String,
    is_colored: bool,
}

impl ScreenState {
    /// The state at the beginning.
    pub fn new(is_colored: bool, filter: String) -> ScreenState {
        ScreenState {
            sort: SortBy::Packets,
            filter,
            is_typing: false,
            is_frozen: false,
            selected: 0,
            is_detailed: false,
            trouble: String::new(),
            is_colored,
        }
    }
    /// A style with a colour, where colours are wanted.
    fn colored(&self, color: Color) -> Style {
        if self.is_colored { Style::new().fg(color) } else { Style::new() }
    }
}

/// Draws everything.
pub fn draw(frame: &mut Frame<'_>, model: &TopModel, state: &mut ScreenState) {
    let ports = model.ports.len().min(PORTS_MAX) as u16 + 1;
    let [head, above, workers, body, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(ports),
        Constraint::Length(1),
        Constraint::Min(2),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Line::from(title(model, state)).style(Style::new().add_modifier(Modifier::BOLD)), head);
    draw_ports(frame, above, model, state);
    frame.render_widget(Line::from(worker_line(model)), workers);
    let rows = model.sorted(state.sort, &state.filter);
    state.selected = state.selected.min(rows.len().saturating_sub(1));
    match rows.get(state.selected).filter(|_| state.is_detailed) {
        Some(row) => frame.render_widget(Paragraph::new(detail(row)), body),
        None => draw_queue_pairs(frame, body, &rows, state),
    }
    frame.render_widget(Line::from(foot_line(state)), foot);
}

fn title(model: &TopModel, state: &ScreenState) -> String {
    let [connections, listeners] = model.connections;
    let frozen = if state.is_frozen { "  FROZEN" } else { "" };
    let hidden = if model.hidden > 0 { format!(" (+{} of others)", model.hidden) } else { String::new() };
    let all = model.queue_pairs.len();
    format!("burst top  {all} queue pairs{hidden}  {connections} connections, {listeners} listeners{frozen}")
}

fn draw_ports(frame: &mut Frame<'_>, area: Rect, model: &TopModel, state: &ScreenState) {
    let head = Row::new(["port", "link", "received", "sent", "pkt in", "pkt out", "again/s", "drops/s"]);
    let rows = model.ports.iter().take(PORTS_MAX).map(|port| {
        let link = if port.is_up { Cell::from("up") } else { Cell::from("down").style(state.colored(Color::Red)) };
        let loss = |rate: f64| {
            let cell = Cell::from(short(rate));
            if rate > 0.0 { cell.style(state.colored(Color::Yellow)) } else { cell }
        };
        Row::new([
            Cell::from(port.name.clone()),
            link,
            Cell::from(format!("{}bit/s", short(port.bits[0]))),
            Cell::from(format!("{}bit/s", short(port.bits[1]))),
            Cell::from(short(port.packets[0])),
            Cell::from(short(port.packets[1])),
            loss(port.repetitions),
            loss(port.drops),
        ])
    });
    let widths = [16, 4, 11, 11, 7, 7, 7, 7].map(Constraint::Length);
    let table = Table::new(rows, widths).header(head.style(Style::new().add_modifier(Modifier::UNDERLINED)));
    frame.render_widget(table.column_spacing(1), area);
}

fn worker_line(model: &TopModel) -> String {
    let words = model.workers.iter().map(|worker| {
        let [busy, spinning, _] = worker.shares.map(|share| 100.0 * share);
        format!("worker {}: {busy:.0}% busy, {spinning:.0}% spinning", worker.worker)
    });
    words.collect::<Vec<_>>().join("; ")
}

fn draw_queue_pairs(frame: &mut Frame<'_>, area: Rect, rows: &[&QpRow], state: &ScreenState) {
    let names = ["qpn", "type", "state", "peer", "pkt/s", "req/s", "flight", "again", "rtt", "program"];
    let head = names.map(|name| if name == state.sort.name() { format!("{name}*") } else { name.to_owned() });
    // The selected row stays visible.
    let visible = usize::from(area.height).saturating_sub(1).max(1);
    let from = state.selected.saturating_sub(visible - 1);
    let shown = rows.iter().enumerate().skip(from).take(visible).map(|(at, row)| {
        let qp = &row.qp;
        let style = match (at == state.selected, row.repetitions > 0) {
            (true, _) => Style::new().add_modifier(Modifier::REVERSED),
            (false, true) => state.colored(Color::Yellow),
            (false, false) => Style::new(),
        };
        let peer = if qp.peer_qpn == 0 { "-".to_owned() } else { qp.peer.to_string() };
        let rtt = if qp.rtt_ns == 0 { "-".to_owned() } else { burst_client::explain::time_text(qp.rtt_ns) };
        Row::new([
            format!("{:#x}", qp.qpn),
            type_name(qp.qp_type).to_owned(),
            state_name(qp.state).to_owned(),
            peer,
            short(row.packets),
            short(row.requests),
            short(qp.inflight_bytes as f64),
            row.repetitions.to_string(),
            rtt,
            format!("{} {}", qp.program.name, qp.program.pid),
        ])
        .style(style)
    });
    // 80 columns hold all of them, with the program's name cut.
    let widths = [8, 4, 5, 15, 6, 6, 7, 6, 6].map(Constraint::Length).into_iter().chain([Constraint::Min(6)]);
    let table = Table::new(shown, widths).header(Row::new(head).style(Style::new().add_modifier(Modifier::UNDERLINED)));
    frame.render_widget(table.column_spacing(1), area);
}

/// A queue pair alone.
fn detail(row: &QpRow) -> String {
    let qp = &row.qp;
    let met = qp
        .counts
        .iter()
        .filter_map(|(number, count)| Some(format!("  {:<28} {count}", Reason::ALL.get(usize::from(*number))?.name())));
    let met: Vec<String> = met.collect();
    format!(
        "queue pair {:#x} ({}), {}, {}, worker {}\nprogram    {} (pid {}, user {})\npeer       {}, queue pair {:#x}\n\
         requests   {} ({}/s), {} bytes in flight, packets of {} bytes\npackets    {}/s, next PSN {}, expected of the peer {}\n\
         met        {}\n{}\n\nburst why qp:{:#x} explains what it waits for.",
        qp.qpn,
        qp.qpn,
        type_name(qp.qp_type),
        state_name(qp.state),
        qp.worker,
        qp.program.name,
        qp.program.pid,
        qp.program.uid,
        qp.peer,
        qp.peer_qpn,
        qp.requests,
        short(row.requests),
        qp.inflight_bytes,
        qp.mtu,
        short(row.packets),
        qp.sent_psn,
        qp.expected_psn,
        if met.is_empty() { "nothing unusual" } else { "" },
        met.join("\n"),
        qp.qpn,
    )
}

fn foot_line(state: &ScreenState) -> String {
    if !state.trouble.is_empty() {
        return state.trouble.clone();
    }
    if state.is_typing {
        return format!("filter: {}_  (enter keeps it, escape removes it)", state.filter);
    }
    let filter = if state.filter.is_empty() { String::new() } else { format!("  filter: {}", state.filter) };
    format!("q ends  s sorts  / filters  space freezes  enter shows one{filter}")
}

/// A number with three digits and a letter.
fn short(value: f64) -> String {
    let steps = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    let step = steps.iter().find(|(least, _)| value >= *least);
    step.map_or_else(|| format!("{value:.0}"), |(unit, letter)| format!("{:.1}{letter}", value / unit))
}

#[cfg(test)]
mod tests {
    use super::super::model::tests::model;
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn page(width: u16, state: &mut ScreenState) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, 12)).expect("a terminal");
        terminal.draw(|frame| draw(frame, &model(), state)).expect("drawn");
        terminal.backend().to_string()
    }

    #[test]
    fn eighty_columns_hold_every_column_without_colour() {
        let mut state = ScreenState::new(false, String::new());
        let text = page(80, &mut state);
        for words in [
            "2 queue pairs (+3 of others)",
            "4.0Mbit/s",
            "25% busy, 25% spinning",
            "pkt/s*",
            "req/s",
            "flight",
            "again",
            "0x111",
            "10.0.0.2",
            "30 us",
            "ib_sen",
        ] {
            assert!(text.contains(words), "{words}:\n{text}");
        }
        let mut terminal = Terminal::new(TestBackend::new(80, 12)).expect("a terminal");
        terminal.draw(|frame| draw(frame, &model(), &mut state)).expect("drawn");
        assert!(terminal.backend().buffer().content().iter().all(|cell| cell.fg == Color::Reset));
    }

    #[test]
    fn small_and_large_terminals_are_drawn() {
        for (width, height) in [(1, 1), (20, 3), (40, 60), (300, 100)] {
            let mut state = ScreenState::new(true, String::new());
            let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
            terminal.draw(|frame| draw(frame, &model(), &mut state)).expect("drawn");
        }
    }

    #[test]
    fn details_filters_and_troubles_are_shown() {
        let mut state = ScreenState::new(true, "send".into());
        state.is_detailed = true;
        let text = page(100, &mut state);
        assert!(text.contains("queue pair 0x111 (273), rc, rts, worker 0") && text.contains("ack_timeout"), "{text}");
        assert!(text.contains("filter: send"), "{text}");
        state.trouble = "no daemon answers".into();
        state.selected = 99;
        assert!(page(80, &mut state).contains("no daemon answers"));
        assert_eq!(state.selected, 0, "there is one row");
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!([0.0, 999.0, 1500.0, 2.5e6, 3e9, 1e12].map(short), ["0", "999", "1.5k", "2.5M", "3.0G", "1.0T"]);
    }
}
