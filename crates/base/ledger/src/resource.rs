//! The limited resources of a daemon: the one table of everything of which users have shares.
//!
//! A row says what is counted in the whole daemon, and in which single objects there are fewer: a user must fill neither. What is
//! limited is created with the charge of its row ([`crate::Charge::covers`]), or as a place of a [`crate::SharePool`], which is
//! made for a scope of this table only. Lists of users, documents and tests are made from the table.

/// An object in which there may be fewer of a resource than in the whole daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// A device.
    Device,
    /// A port: what is below a device.
    Port,
    /// A worker thread.
    Worker,
    /// A multicast group.
    Group,
    /// An XRC target queue pair.
    XrcTarget,
    /// A node of URMA: what programs share at one address.
    Node,
}

impl Scope {
    /// The object, with its article.
    pub const fn words(self) -> &'static str {
        match self {
            Scope::Device => "one device",
            Scope::Port => "one port",
            Scope::Worker => "one worker",
            Scope::Group => "one multicast group",
            Scope::XrcTarget => "one XRC target",
            Scope::Node => "one node of URMA",
        }
    }
}

macro_rules! resources {
    ($($variant:ident, $name:literal, $words:literal, [$($scope:ident),*];)+) => {
        /// A resource of which every user may use a share.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Resource { $(#[doc = $words] $variant),+ }

        impl Resource {
            /// Every resource, in table order.
            pub const ALL: &'static [Resource] = &[$(Resource::$variant),+];
            /// Number of resources.
            pub const COUNT: usize = Self::ALL.len();
            /// Stable name, as `burst ls --users` prints it.
            pub const fn name(self) -> &'static str { match self { $(Resource::$variant => $name),+ } }
            /// What is counted, in the plural.
            pub const fn words(self) -> &'static str { match self { $(Resource::$variant => $words),+ } }
            /// The objects in which it is shared besides.
            pub const fn scopes(self) -> &'static [Scope] { match self { $(Resource::$variant => &[$(Scope::$scope),*]),+ } }
        }
    };
}

resources! {
    Session, "sessions", "connections to the daemon", [];
    Context, "contexts", "contexts", [];
    Pd, "pds", "protection domains", [Device];
    Key, "keys", "keys of memory regions and windows", [];
    Mr, "mrs", "memory regions", [];
    Mw, "mws", "memory windows and segments", [Device, Node];
    Cq, "cqs", "completion queues", [Device];
    Qp, "qps", "queue pairs and Jetties", [Device, Worker, XrcTarget, Node];
    Srq, "srqs", "shared receive queues", [Device, Node];
    XrcSrq, "xrc_srqs", "shared receive queues in XRC domains", [];
    Ah, "ahs", "address handles and imports", [Device, Node];
    Channel, "channels", "completion channels", [];
    Dm, "dms", "device memories", [];
    Xrcd, "xrcds", "XRC domains", [];
    Group, "groups", "multicast groups, each once for each user in it", [Port];
    GroupMember, "group_members", "queue pairs attached to multicast groups", [Group];
    GroupJoin, "group_joins", "joins of multicast groups by communication ids", [Group];
    CmId, "cm_ids", "communication ids", [Worker];
    CmRequest, "cm_requests", "connection requests that wait for their listeners", [Worker];
    CmChannel, "cm_channels", "event channels", [];
    UnreadEvent, "unread_events", "events of connection management that wait for programs to read", [];
    Capture, "captures", "captures of packets", [Port];
    Port, "ports", "bound addresses of connection management", [];
    UrmaJfc, "urma_jfcs", "completion queues of URMA", [];
    UrmaRequest, "urma_requests", "work requests that Jetties of URMA may have outstanding", [];
    UrmaPeer, "urma_peers", "hosts from which programs import by URMA", [];
    Descriptor, "descriptors", "file descriptors of the daemon", [];
    Mapping, "mappings", "memory mappings of the daemon", [];
    QueueBytes, "queue_bytes", "bytes of queues", [];
    AddressSpace, "address_space", "bytes of address space of the daemon", [];
    WorkerNumber, "worker_numbers", "worker numbers that are lent", [];
}

impl Resource {
    /// Whether privileged accounts have a share, too, of what the others leave, the reserve included. Nothing is refused for such
    /// a resource, but lost, so root would not see that its programs take what others' need.
    pub const fn binds_privileged(self) -> bool {
        matches!(self, Resource::UnreadEvent)
    }

    /// The rows of single objects, in table order.
    pub fn places() -> impl Iterator<Item = (Resource, Scope)> {
        Resource::ALL.iter().flat_map(|resource| resource.scopes().iter().map(|scope| (*resource, *scope)))
    }
}

/// How much there is of each resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacities([u64; Resource::COUNT]);

impl Capacities {
    /// The capacities that `of` gives.
    pub fn new(of: impl Fn(Resource) -> u64) -> Capacities {
        Capacities(std::array::from_fn(|index| of(Resource::ALL[index])))
    }

    /// The capacity of a resource.
    pub fn of(&self, resource: Resource) -> u64 {
        self.0[resource as usize]
    }
}
