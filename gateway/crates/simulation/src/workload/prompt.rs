//! What a prompt is made of, as far as prompt caches are concerned: contents that are told apart, and their lengths.

use scheduler::Prefix;

/// A stretch of text. Two stretches of the same content agree in as many tokens as the shorter has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Which text.
    pub content: u64,
    /// How much of it.
    pub tokens: u32,
}

/// A template, then what is the request's (or its conversation's) own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    /// The shared beginning; its content always comes in the same length, except in a slot that was stopped while reading.
    pub template: Segment,
    /// The rest.
    pub own: Segment,
}

impl Prompt {
    /// How long it is.
    pub const fn tokens(&self) -> u32 {
        self.template.tokens + self.own.tokens
    }

    /// Leading tokens that two prompts share.
    pub fn common(&self, other: &Self) -> u32 {
        if self.template.content != other.template.content {
            return 0;
        }
        let shared = self.template.tokens.min(other.template.tokens);
        let whole = self.template.tokens == other.template.tokens;
        if whole && self.own.content == other.own.content {
            shared + self.own.tokens.min(other.own.tokens)
        } else {
            shared
        }
    }

    /// The first `tokens` of it.
    pub fn truncated(&self, tokens: u32) -> Self {
        let template = Segment { tokens: self.template.tokens.min(tokens), ..self.template };
        Self {
            template,
            own: Segment { tokens: tokens.saturating_sub(self.template.tokens).min(self.own.tokens), ..self.own },
        }
    }

    /// The same with an answer appended.
    pub const fn extended(&self, answer: u32) -> Self {
        Self { template: self.template, own: Segment { content: self.own.content, tokens: self.own.tokens + answer } }
    }

    /// Its fingerprints, at every cut that it reaches.
    pub fn fingerprints(&self) -> Prefix {
        let cuts = Prefix::cuts().take_while(|cut| *cut <= self.tokens());
        Prefix::new(cuts.map(|cut| self.fingerprint(cut)))
    }

    /// Stands for all that lies before the cut: for nothing of the request's own if the template reaches that far.
    fn fingerprint(&self, cut: u32) -> u64 {
        let own = if cut > self.template.tokens { (self.own.content, self.template.tokens) } else { (0, 0) };
        [self.template.content, own.0, u64::from(own.1), u64::from(cut)].into_iter().fold(0, mix)
    }
}

/// The finalizer of SplitMix64, chained.
fn mix(hash: u64, value: u64) -> u64 {
    crate::rng::Rng::from_seed(hash ^ value).bits()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn prompt(template: u64, template_tokens: u32, own: u64, own_tokens: u32) -> Prompt {
        Prompt {
            template: Segment { content: template, tokens: template_tokens },
            own: Segment { content: own, tokens: own_tokens },
        }
    }

    #[test]
    fn prompts_share_their_template_and_turns_of_a_conversation_all_that_came_before() {
        let first = prompt(1, 100, 7, 50);
        assert_eq!(first.common(&prompt(2, 100, 7, 50)), 0);
        assert_eq!(first.common(&prompt(1, 100, 8, 50)), 100);
        assert_eq!(first.common(&prompt(1, 100, 7, 80)), 150);
        assert_eq!(first.truncated(60).common(&first), 60);
        assert_eq!(first.truncated(120).common(&first), 120);
        assert_eq!(first.extended(30).tokens(), 180);
    }

    #[test]
    fn fingerprints_agree_exactly_as_far_as_the_prompts_do() {
        let first = prompt(1, 100, 7, 500);
        for (other, cuts) in [
            (prompt(1, 100, 7, 500), 18),
            (prompt(1, 100, 7, 900), 18),
            (prompt(1, 100, 7, 200), 9),
            (prompt(1, 100, 8, 500), 3),
            (prompt(1, 128, 7, 500), 3),
            (prompt(2, 100, 7, 500), 0),
        ] {
            assert_eq!(first.fingerprints().common(&other.fingerprints()), cuts, "{other:?}");
        }
    }
}
