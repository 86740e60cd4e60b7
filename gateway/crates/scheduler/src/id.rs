//! Identities. Newtypes, so that a request can't be taken for an attempt. The driver numbers requests, replicas,
//! tenants, models and relays; the core numbers attempts.

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        pub struct $name(pub $inner);
    };
}

id!(/// One client request, once. Never reused within a run.
    RequestId(u64));
id!(/// One try of a request on one replica. Given by the core, never reused within a run.
    AttemptId(u64));
id!(/// One phone serving at one address. Never reused within a run, also not after removal.
    ReplicaId(u32));
id!(/// The party an API key belongs to.
    TenantId(u32));
id!(/// A model as clients name it, after aliases are resolved.
    ModelId(u32));
id!(/// What stands between us and a group of replicas; when all of one relay fail at once, the relay is down.
    RelayId(u32));
id!(/// Replicas that would write the same answer: same engine build, settings and model file.
    GroupId(u64));
