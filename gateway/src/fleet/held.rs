//! What an operator states about a phone that came by itself stays his, field by field: what the phone, or the chain, says of that
//! field later changes nothing until he takes his statement back.

use std::collections::BTreeSet;

use super::{
    change::{Amendment, LabelChange},
    replica::Stated,
};

impl Stated {
    /// Fields by the names that they have in the admin API, and whether anything is stated of each.
    fn fields_stated(&self) -> [(&'static str, bool); 9] {
        [
            ("models", !self.models.0.is_empty()),
            ("slots", self.slots.is_some()),
            ("context_tokens", self.context_tokens.is_some()),
            ("dialect", self.dialect.is_some()),
            ("labels", !self.labels.is_empty()),
            ("expires_at", self.expires_at.is_some()),
            ("cost_acu_per_day", self.cost_acu_per_day.is_some()),
            ("prefill_rate", self.prefill_rate.is_some()),
            ("decode_rate", self.decode_rate.is_some()),
        ]
    }

    /// All that is stated is an operator's, but for the key: that was given for one address.
    pub(super) fn hold_all(&mut self) {
        let stated = self.fields_stated().into_iter().filter(|(_, stated)| *stated);
        self.held = stated.map(|(name, _)| name.to_owned()).collect();
    }

    /// What an operator has just stated is his, and what he took back no longer is. Labels are one field: his with whatever he changed
    /// in them, and not for a name that he takes away and nobody has.
    pub(super) fn hold(&mut self, amendment: &Amendment, before: &Self) {
        for (name, stated) in amendment.fields() {
            let stated = match stated {
                Some(_) if name == "labels" && self.labels.is_empty() => Some(false),
                Some(_) if name == "labels" && amendment.only_takes_labels() && self.labels == before.labels => None,
                stated => stated,
            };
            match stated {
                Some(true) => drop(self.held.insert(name.to_owned())),
                Some(false) => drop(self.held.remove(name)),
                None => {}
            }
        }
    }
}

impl Amendment {
    /// Fields by the same names: `Some` if it is about them, true if it states something and false if it takes that back.
    fn fields(&self) -> [(&'static str, Option<bool>); 10] {
        let labels = |change: &LabelChange| match change {
            LabelChange::All(all) => !all.is_empty(),
            LabelChange::Some(_) => true,
        };
        [
            ("models", self.models.as_ref().map(|models| !models.0.is_empty())),
            ("slots", self.slots.map(|slots| slots.is_some())),
            ("context_tokens", self.context_tokens.map(|tokens| tokens.is_some())),
            ("api_key", self.key.as_ref().map(Option::is_some)),
            ("dialect", self.dialect.map(|dialect| dialect.is_some())),
            ("labels", self.labels.as_ref().map(labels)),
            ("expires_at", self.expires_at.map(|at| at.is_some())),
            ("cost_acu_per_day", self.cost_acu_per_day.map(|cost| cost.is_some())),
            ("prefill_rate", self.prefill_rate.map(|rate| rate.is_some())),
            ("decode_rate", self.decode_rate.map(|rate| rate.is_some())),
        ]
    }

    /// Whether it takes labels away, by name, and sets none.
    fn only_takes_labels(&self) -> bool {
        matches!(&self.labels, Some(LabelChange::Some(some)) if some.values().all(Option::is_none))
    }

    /// What is left of it where these fields are an operator's.
    pub(super) fn without(self, held: &BTreeSet<String>) -> Self {
        fn free<T>(held: &BTreeSet<String>, name: &str, value: Option<T>) -> Option<T> {
            value.filter(|_| !held.contains(name))
        }
        Self {
            name: self.name,
            models: free(held, "models", self.models),
            slots: free(held, "slots", self.slots),
            context_tokens: free(held, "context_tokens", self.context_tokens),
            key: free(held, "api_key", self.key),
            dialect: free(held, "dialect", self.dialect),
            labels: free(held, "labels", self.labels),
            expires_at: free(held, "expires_at", self.expires_at),
            cost_acu_per_day: free(held, "cost_acu_per_day", self.cost_acu_per_day),
            claimed_cost_acu_per_day: self.claimed_cost_acu_per_day,
            prefill_rate: free(held, "prefill_rate", self.prefill_rate),
            decode_rate: free(held, "decode_rate", self.decode_rate),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(names: &[(&str, Option<&str>)]) -> Amendment {
        let some = names.iter().map(|(name, value)| ((*name).to_owned(), value.map(str::to_owned)));
        Amendment { labels: Some(LabelChange::Some(some.collect())), ..Amendment::default() }
    }

    /// Of a phone that says that it is in room 1: its labels then, and whether they are the operator's.
    fn changed(changes: &[Amendment]) -> (usize, bool) {
        let mut stated = Stated::default();
        stated.labels.insert("room".into(), "1".into());
        for change in changes {
            let before = stated.clone();
            change.apply(&mut stated);
            stated.hold(change, &before);
        }
        (stated.labels.len(), stated.held.contains("labels"))
    }

    #[test]
    fn labels_are_an_operators_while_there_are_any_that_he_has_changed() {
        let (set, take) = (labels(&[("owner", Some("ann"))]), labels(&[("owner", None)]));
        assert_eq!(changed(std::slice::from_ref(&set)), (2, true));
        assert_eq!(changed(&[labels(&[("room", Some("1"))])]), (1, true), "he says what the phone says");
        assert_eq!(changed(std::slice::from_ref(&take)), (1, false), "nobody has it: nothing is stated");
        assert_eq!(changed(&[set.clone(), take.clone()]), (1, true), "what is left he has seen, and left so");
        assert_eq!(changed(&[set, take, labels(&[("room", None)])]), (0, false), "as with `null` for all of them");
    }
}
