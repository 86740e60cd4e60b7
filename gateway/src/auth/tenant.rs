//! A tenant as the stages behind `auth` see it, and how configuration and stored keys become one.

use std::{collections::BTreeSet, sync::Arc};

use scheduler::{Class, TenantId};
use serde_json::{Value, json};
use store::KeyRecord;

use super::AuthSetupError;
use crate::{
    config::{TenantLimits, TenantSection},
    ratelimit::MeterId,
};

/// Who asks, and what they may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// Stable while the process runs.
    pub id: TenantId,
    /// From the configuration or the key; short and harmless, so that it can be a metric's label.
    pub name: Arc<str>,
    /// How urgent a request is that does not say.
    pub default_class: Class,
    /// The most urgent class that may be asked for.
    pub max_class: Class,
    /// What may be asked a minute and at once.
    pub limits: TenantLimits,
    /// What those limits are measured on: the tenant, or a key with limits of its own.
    pub meter: MeterId,
    /// `None`: all.
    models: Option<Arc<BTreeSet<String>>>,
}

impl Tenant {
    /// A tenant that may everything.
    pub fn unlimited(id: TenantId, name: &str) -> Self {
        Self {
            id,
            name: name.into(),
            default_class: Class::Standard,
            max_class: Class::Interactive,
            limits: TenantLimits::default(),
            meter: MeterId { tenant: id, key: None },
            models: None,
        }
    }

    /// Whether it may use a model, by the name that clients use.
    pub fn may_use(&self, model: &str) -> bool {
        self.models.as_ref().is_none_or(|models| models.contains(model))
    }

    /// The models that it may use; `None`: all.
    pub(super) fn models(&self) -> Option<&BTreeSet<String>> {
        self.models.as_deref()
    }

    /// What it may, to be kept with work that outlives the request in which it was asked for. See [`Tenant::recalled`].
    pub fn permissions(&self) -> Value {
        let models = self.models.as_ref().map(|models| models.iter().collect::<Vec<_>>());
        json!({"max_class": self.max_class.name(), "models": models})
    }

    /// The tenant that had these [`permissions`](Self::permissions): it may what it might then, whatever became of its keys.
    pub(super) fn recalled(id: TenantId, name: &str, permissions: &Value) -> Self {
        let class = permissions["max_class"].as_str();
        let models = permissions["models"].as_array().map(|models| {
            Arc::new(models.iter().filter_map(|model| model.as_str().map(str::to_owned)).collect::<BTreeSet<_>>())
        });
        Self {
            max_class: Class::ALL.into_iter().find(|known| class == Some(known.name())).unwrap_or(Class::Batch),
            models,
            ..Self::unlimited(id, name)
        }
    }

    /// As the configuration has it.
    pub(super) fn from_section(id: TenantId, name: &str, section: &TenantSection) -> Self {
        let models: BTreeSet<String> = section.models.iter().cloned().collect();
        Self {
            default_class: section.class,
            max_class: section.max_class,
            limits: section.limits,
            models: (!models.is_empty()).then(|| Arc::new(models)),
            ..Self::unlimited(id, name)
        }
    }

    /// This tenant, as one of its stored keys narrows it. A key never widens what its tenant may: its models are those
    /// of both, its class the less urgent of both. Limits of its own are measured on the key alone.
    pub(super) fn narrowed(&self, record: &KeyRecord) -> Result<Self, AuthSetupError> {
        let key = &record.key;
        let class = |name: &Option<String>| match name {
            Some(name) => Class::ALL
                .into_iter()
                .find(|class| class.name() == name)
                .map(Some)
                .ok_or_else(|| AuthSetupError::UnknownClass { key: record.id, class: name.clone() }),
            None => Ok(None),
        };
        let max_class = class(&key.max_class)?.map_or(self.max_class, |class| class.max(self.max_class));
        let models = match (&self.models, key.models.is_empty()) {
            (of_tenant, true) => of_tenant.clone(),
            (None, false) => Some(Arc::new(key.models.iter().cloned().collect())),
            (Some(of_tenant), false) => {
                Some(Arc::new(key.models.iter().filter(|model| of_tenant.contains(*model)).cloned().collect()))
            }
        };
        let own = key.limits;
        let states_limits = own != store::KeyLimits::default();
        let limits = TenantLimits {
            requests_per_minute: own.requests_per_minute.or(self.limits.requests_per_minute),
            tokens_per_minute: own.tokens_per_minute.or(self.limits.tokens_per_minute),
            max_in_flight: own.max_in_flight.or(self.limits.max_in_flight),
            max_queued: own.max_queued.or(self.limits.max_queued),
        };
        Ok(Self {
            default_class: class(&key.class)?.unwrap_or(self.default_class).max(max_class),
            max_class,
            limits,
            meter: MeterId { tenant: self.id, key: states_limits.then_some(record.id) },
            models,
            ..self.clone()
        })
    }
}

#[cfg(test)]
mod tests {
    use store::{KeyLimits, NewKey, UnixMillis};

    use super::*;

    fn record(change: impl FnOnce(&mut NewKey)) -> KeyRecord {
        let mut key = NewKey {
            tenant: "bank".into(),
            prefix: "hg-abcd".into(),
            digest: [0; 32],
            limits: KeyLimits::default(),
            models: Vec::new(),
            class: None,
            max_class: None,
        };
        change(&mut key);
        KeyRecord { id: 7, key, created: UnixMillis(0), revoked: None }
    }

    fn bank() -> Tenant {
        let mut section = TenantSection::new(TenantLimits { requests_per_minute: Some(60), ..TenantLimits::default() });
        section.models = vec!["a".into(), "b".into()];
        section.max_class = Class::Standard;
        Tenant::from_section(TenantId(3), "bank", &section)
    }

    #[test]
    fn a_key_that_states_nothing_is_its_tenant() {
        assert_eq!(bank().narrowed(&record(|_| {})).unwrap(), bank());
    }

    #[test]
    fn a_key_narrows_models_and_classes_and_never_widens_them() {
        let key = bank()
            .narrowed(&record(|key| {
                key.models = vec!["b".into(), "c".into()];
                key.class = Some("interactive".into());
                key.max_class = Some("interactive".into());
            }))
            .unwrap();
        assert!(key.may_use("b") && !key.may_use("a") && !key.may_use("c"));
        assert_eq!((key.max_class, key.default_class), (Class::Standard, Class::Standard));
        let none = bank().narrowed(&record(|key| key.models = vec!["c".into()])).unwrap();
        assert!(!none.may_use("a") && !none.may_use("c"), "nothing in common is nothing, not everything");
        let batch = bank().narrowed(&record(|key| key.max_class = Some("batch".into()))).unwrap();
        assert_eq!((batch.max_class, batch.default_class), (Class::Batch, Class::Batch));
    }

    #[test]
    fn a_key_with_limits_is_measured_on_its_own() {
        let key = bank().narrowed(&record(|key| key.limits.tokens_per_minute = Some(5))).unwrap();
        assert_eq!(key.meter, MeterId { tenant: TenantId(3), key: Some(7) });
        assert_eq!((key.limits.requests_per_minute, key.limits.tokens_per_minute), (Some(60), Some(5)));
    }

    #[test]
    fn a_class_that_no_version_of_ours_wrote_is_an_error() {
        let error = bank().narrowed(&record(|key| key.class = Some("urgent".into()))).unwrap_err();
        assert!(matches!(error, AuthSetupError::UnknownClass { key: 7, .. }));
    }
}
