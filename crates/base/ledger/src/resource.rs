//! The limited resources of a daemon.

macro_rules! resources {
    ($($variant:ident, $name:literal, $words:literal;)+) => {
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
        }
    };
}

resources! {
    Session, "sessions", "connections to the daemon";
    Context, "contexts", "contexts";
    Pd, "pds", "protection domains";
    Mr, "mrs", "memory regions";
    Mw, "mws", "memory windows";
    Cq, "cqs", "completion queues";
    Qp, "qps", "queue pairs";
    Srq, "srqs", "shared receive queues";
    Ah, "ahs", "address handles";
    Channel, "channels", "completion channels";
    Dm, "dms", "device memories";
    Xrcd, "xrcds", "XRC domains";
    Group, "groups", "multicast groups";
    GroupMember, "group_members", "queue pairs attached to multicast groups";
    CmId, "cm_ids", "communication ids";
    CmChannel, "cm_channels", "event channels";
    Port, "ports", "bound addresses of connection management";
    UrmaJfc, "urma_jfcs", "completion queues of URMA";
    UrmaRequest, "urma_requests", "work requests that Jetties of URMA may have outstanding";
    UrmaPeer, "urma_peers", "hosts from which programs import by URMA";
    Descriptor, "descriptors", "file descriptors of the daemon";
    Mapping, "mappings", "memory mappings of the daemon";
    QueueBytes, "queue_bytes", "bytes of queues";
    AddressSpace, "address_space", "bytes of address space of the daemon";
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
