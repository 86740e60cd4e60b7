//! All keys and tenants at one moment, immutable.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    sync::Arc,
};

use scheduler::{Share, TenantId};
use store::KeyRecord;

use super::{
    AuthSetupError,
    key::{Digest, Pepper},
    tenant::Tenant,
};
use crate::config::{ANONYMOUS, Auth, Config, TenantLimits, TenantSection};

/// What the configuration says about tenants.
#[derive(Clone, Debug)]
pub(super) struct Stated {
    auth: Auth,
    defaults: TenantLimits,
    tenants: BTreeMap<String, TenantSection>,
}

impl From<&Config> for Stated {
    fn from(config: &Config) -> Self {
        Self { auth: config.server.auth, defaults: config.limits.tenant, tenants: config.tenants.clone() }
    }
}

impl Stated {
    /// The shares that differ from the usual one.
    pub(super) fn shares(&self, ids: &mut TenantIds) -> BTreeMap<TenantId, Share> {
        let stated = self.tenants.iter().filter(|(_, section)| section.share != Share::default());
        stated.map(|(name, section)| (ids.of(name), section.share)).collect()
    }
}

/// Numbers of tenants; a name keeps its number while the process runs, also when it goes and comes back.
#[derive(Debug, Default)]
pub(super) struct TenantIds(BTreeMap<String, TenantId>);

impl TenantIds {
    /// The number of a name.
    pub(super) fn of(&mut self, name: &str) -> TenantId {
        if let Some(id) = self.0.get(name) {
            return *id;
        }
        let id = TenantId(u32::try_from(self.0.len()).unwrap_or(u32::MAX));
        self.0.insert(name.to_owned(), id);
        id
    }

    /// All names, by number.
    pub(super) fn names(&self) -> BTreeMap<TenantId, &str> {
        self.0.iter().map(|(name, id)| (*id, name.as_str())).collect()
    }
}

/// The first half of a digest: finds the one key that it can be. The rest is compared in constant time.
type Half = [u8; 16];

fn half(digest: &Digest) -> Half {
    let mut half = [0; 16];
    half.copy_from_slice(&digest.0[..16]);
    half
}

/// Who may come in.
pub(super) struct Table {
    keys: HashMap<Half, (Digest, Arc<Tenant>)>,
    everybody: Option<Arc<Tenant>>,
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("keys", &self.keys.len()).field("everybody", &self.everybody).finish()
    }
}

impl Table {
    pub(super) fn new(
        stated: &Stated,
        ids: &mut TenantIds,
        stored: &[KeyRecord],
        pepper: &Pepper,
    ) -> Result<Self, AuthSetupError> {
        let unstated = TenantSection::new(stated.defaults);
        let mut tenants: BTreeMap<&str, Arc<Tenant>> = BTreeMap::new();
        let mut tenant = |name| {
            let make = || {
                let section = stated.tenants.get(name).unwrap_or(&unstated);
                Arc::new(Tenant::from_section(ids.of(name), name, section))
            };
            Arc::clone(tenants.entry(name).or_insert_with(make))
        };
        let mut keys = HashMap::new();
        for record in stored.iter().filter(|record| record.revoked.is_none()) {
            let narrowed = tenant(&record.key.tenant).narrowed(record)?;
            let digest = Digest(record.key.digest);
            keys.insert(half(&digest), (digest, Arc::new(narrowed)));
        }
        // The configuration's keys go before stored ones: what stands in the file holds.
        for (name, section) in &stated.tenants {
            for key in &section.keys {
                let digest = pepper.digest(key.reveal());
                keys.insert(half(&digest), (digest, tenant(name)));
            }
        }
        let everybody = (stated.auth == Auth::None).then(|| tenant(ANONYMOUS));
        Ok(Self { keys, everybody })
    }

    /// The tenant of all requests, if keys are not asked for.
    pub(super) const fn everybody(&self) -> Option<&Arc<Tenant>> {
        self.everybody.as_ref()
    }

    /// The models that keys name, by tenant.
    pub(super) fn named_models(&self) -> BTreeMap<Arc<str>, BTreeSet<String>> {
        let mut named: BTreeMap<Arc<str>, BTreeSet<String>> = BTreeMap::new();
        let tenants = self.keys.values().map(|(_, tenant)| tenant).chain(&self.everybody);
        for (tenant, models) in tenants.filter_map(|tenant| Some((tenant, tenant.models()?))) {
            named.entry(Arc::clone(&tenant.name)).or_default().extend(models.iter().cloned());
        }
        named
    }

    /// Whether nobody can be known.
    pub(super) fn is_closed(&self) -> bool {
        self.everybody.is_none() && self.keys.is_empty()
    }

    /// The tenant of a key.
    pub(super) fn find(&self, pepper: &Pepper, key: &str) -> Option<&Arc<Tenant>> {
        let (digest, tenant) = self.keys.get(&half(&pepper.digest(key)))?;
        pepper.matches(key, digest).then_some(tenant)
    }
}
