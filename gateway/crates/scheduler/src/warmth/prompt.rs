//! A request's prompt, as the search for a warm replica sees it.

use super::index::Found;
use crate::prefix::Prefix;

/// Names a template: the fingerprint at its last cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TemplateKey(pub(crate) u64);

/// The beginning of a prompt that many others have too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Template {
    pub(crate) key: TemplateKey,
    /// How many cuts lie in it.
    pub(super) cuts: usize,
    /// Its believed length: it ends somewhere between its last cut and the next. Estimated tokens in a [`Found`], tokens
    /// of the model in a [`Prompt`].
    pub(crate) tokens: f64,
}

/// Built once, as the request arrives. Lengths are in tokens of the model.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prompt {
    pub(crate) prefix: Prefix,
    pub(crate) tokens: f64,
    /// Tokens of the model per estimated token.
    pub(crate) scale: f64,
    pub(crate) template: Option<Template>,
    /// How many of its cuts were seen before.
    pub(super) known: usize,
}

impl Prompt {
    /// `tokens`: its length in tokens of the model, which has `scale` tokens per estimated token.
    pub(crate) fn new(prefix: Prefix, tokens: f64, scale: f64, found: &Found) -> Self {
        let in_tokens = |template: Template| Template { tokens: (template.tokens * scale).min(tokens), ..template };
        Self { prefix, tokens, scale, template: found.template.map(in_tokens), known: found.known }
    }

    /// How many cuts lie in its template; 0 without one.
    pub(super) fn template_cuts(&self) -> usize {
        self.template.map_or(0, |template| template.cuts)
    }

    /// Whether this is its fingerprint at that cut, counted from 1.
    pub(super) fn has(&self, cut: usize, fingerprint: u64) -> bool {
        cut.checked_sub(1).and_then(|at| self.prefix.fingerprints().get(at)) == Some(&fingerprint)
    }
}
