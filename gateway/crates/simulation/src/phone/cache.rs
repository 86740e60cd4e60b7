//! The prompt caches of a phone's slots.
//!
//! Each slot keeps the tokens of the last request it served, prompt and answer. A new request skips the longest prefix
//! it shares with them. Which idle slot takes a request follows llama-server: the one with the longest common prefix if
//! that is more than a tenth of the prompt, else an empty one, else the least recently used.

/// How many leading tokens two sequences share.
pub fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

/// The slot chosen for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotChoice {
    /// Index of the slot.
    pub slot: usize,
    /// Leading tokens of the prompt that need not be read again; less than the prompt's length, because the last token
    /// is always evaluated.
    pub cached: usize,
}

#[derive(Debug, Clone, Default)]
struct Slot {
    tokens: Vec<u32>,
    busy: bool,
    /// The use counter's value when the slot was last taken or returned; 0 when never.
    used: u64,
    /// What it is busy with is from before the engine's last start.
    bygone: bool,
}

/// All slots of one phone.
#[derive(Debug, Clone)]
pub struct SlotCaches {
    slots: Vec<Slot>,
    uses: u64,
    /// False on a phone whose engine forgets every prompt.
    remembers: bool,
}

impl SlotCaches {
    /// `slots` empty slots; with `remembers` false nothing is ever found in them.
    pub fn new(slots: usize, remembers: bool) -> Self {
        Self { slots: vec![Slot::default(); slots], uses: 0, remembers }
    }

    /// Takes the idle slot that suits `prompt` best, or `None` when all are busy.
    pub fn take(&mut self, prompt: &[u32]) -> Option<SlotChoice> {
        let shared = |slot: &Slot| common_prefix(&slot.tokens, prompt);
        let idle = || self.slots.iter().enumerate().filter(|(_, slot)| !slot.busy);
        let warm = idle()
            .map(|(index, slot)| (shared(slot), index))
            .filter(|(length, _)| length * 10 > prompt.len())
            .max_by_key(|&(length, index)| (length, std::cmp::Reverse(index)));
        let index = match warm {
            Some((_, index)) => index,
            None => idle().min_by_key(|(index, slot)| (slot.used, *index)).map(|(index, _)| index)?,
        };
        let found = if self.remembers { shared(&self.slots[index]) } else { 0 };
        self.uses += 1;
        let slot = &mut self.slots[index];
        slot.busy = true;
        slot.bygone = false;
        slot.used = self.uses;
        Some(SlotChoice { slot: index, cached: found.min(prompt.len().saturating_sub(1)) })
    }

    /// Returns a slot, which now holds `tokens`: what was read and written before the request ended or was cancelled.
    pub fn put_back(&mut self, slot: usize, tokens: Vec<u32>) {
        self.uses += 1;
        let used = self.uses;
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.busy = false;
            slot.used = used;
            slot.tokens = if slot.bygone { Vec::new() } else { tokens };
        }
    }

    /// Whether each slot is busy, in order of their numbers.
    pub fn busy(&self) -> impl Iterator<Item = bool> {
        self.slots.iter().map(|slot| slot.busy)
    }

    /// Empties every cache, as a restart of the engine does. Busy slots stay busy; what they are busy with leaves nothing.
    pub fn forget(&mut self) {
        for slot in &mut self.slots {
            slot.tokens = Vec::new();
            slot.bygone = slot.busy;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(range: std::ops::Range<u32>) -> Vec<u32> {
        range.collect()
    }

    #[test]
    fn a_slot_skips_what_it_still_holds_but_always_reads_the_last_token() {
        let mut caches = SlotCaches::new(1, true);
        let prompt = tokens(0..100);
        assert_eq!(caches.take(&prompt), Some(SlotChoice { slot: 0, cached: 0 }));
        caches.put_back(0, prompt.clone());
        assert_eq!(caches.take(&prompt), Some(SlotChoice { slot: 0, cached: 99 }));
        caches.put_back(0, prompt);
        let mut branch = tokens(0..60);
        branch.extend(500..540);
        assert_eq!(caches.take(&branch).map(|choice| choice.cached), Some(60));
    }

    #[test]
    fn a_request_goes_to_the_slot_with_the_longest_prefix_even_if_another_is_older() {
        let mut caches = SlotCaches::new(3, true);
        for start in [0, 1000, 2000] {
            let choice = caches.take(&tokens(start..start + 50)).expect("an idle slot");
            caches.put_back(choice.slot, tokens(start..start + 50));
        }
        assert_eq!(caches.take(&tokens(2000..2100)), Some(SlotChoice { slot: 2, cached: 50 }));
        assert_eq!(caches.take(&tokens(9000..9100)), Some(SlotChoice { slot: 0, cached: 0 }));
    }

    #[test]
    fn a_prefix_of_a_tenth_or_less_does_not_bind_a_request_to_its_slot() {
        let mut caches = SlotCaches::new(2, true);
        let first = caches.take(&tokens(0..10)).expect("an idle slot");
        caches.put_back(first.slot, tokens(0..10));
        assert_eq!(caches.take(&tokens(0..100)), Some(SlotChoice { slot: 1, cached: 0 }));
    }

    #[test]
    fn no_slot_is_given_when_all_are_busy_and_a_returned_one_is_given_again() {
        let mut caches = SlotCaches::new(2, true);
        assert!(caches.take(&[1]).is_some() && caches.take(&[2]).is_some());
        assert_eq!(caches.take(&[3]), None);
        assert_eq!(caches.busy().collect::<Vec<_>>(), [true, true]);
        caches.put_back(1, vec![2]);
        assert_eq!(caches.take(&[3]).map(|choice| choice.slot), Some(1));
    }

    #[test]
    fn a_phone_that_forgets_finds_nothing() {
        let mut caches = SlotCaches::new(1, false);
        let prompt = tokens(0..20);
        assert!(caches.take(&prompt).is_some());
        caches.put_back(0, prompt.clone());
        assert_eq!(caches.take(&prompt), Some(SlotChoice { slot: 0, cached: 0 }));
    }

    #[test]
    fn a_restart_empties_the_caches() {
        let mut caches = SlotCaches::new(1, true);
        let prompt = tokens(0..20);
        assert!(caches.take(&prompt).is_some());
        caches.put_back(0, prompt.clone());
        caches.forget();
        assert_eq!(caches.take(&prompt), Some(SlotChoice { slot: 0, cached: 0 }));
        caches.forget();
        caches.put_back(0, prompt.clone());
        assert_eq!(caches.take(&prompt), Some(SlotChoice { slot: 0, cached: 0 }), "it was read before the restart");
        caches.put_back(0, prompt.clone());
        assert_eq!(caches.take(&prompt), Some(SlotChoice { slot: 0, cached: 19 }));
    }
}
