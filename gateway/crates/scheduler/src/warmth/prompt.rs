//! A request's prompt as the search for a warm replica sees it.

use super::index::Found;
use crate::prefix::Prefix;

/// Names a template: the fingerprint at its last cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TemplateKey(pub u64);

/// The beginning of a prompt that many others have too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Template {
    pub key: TemplateKey,
    /// Its believed length in *estimated* tokens, at least what lies before its last cut.
    pub tokens: f64,
    /// How many cuts lie in it.
    pub cuts: usize,
}

/// Built once, as the request arrives.
#[derive(Clone, Debug)]
pub(crate) struct Prompt {
    pub prefix: Prefix,
    /// Its length in tokens of the model, as far as it is known.
    pub tokens: f64,
    /// Tokens of the model per estimated token.
    pub scale: f64,
    pub template: Option<Template>,
    /// It goes on from a prompt seen before: a later turn of a conversation.
    pub returns: bool,
    /// How many of its cuts were seen before.
    pub known: usize,
}

impl Prompt {
    /// `tokens` and `scale` as the fields say.
    pub fn new(prefix: Prefix, tokens: f64, scale: f64, found: &Found) -> Self {
        Self { prefix, tokens, scale, template: found.template, returns: found.returns, known: found.known }
    }

    /// The length of its template in tokens of the model; 0 without one.
    pub fn template_tokens(&self) -> f64 {
        self.template.map_or(0.0, |template| template.tokens * self.scale).min(self.tokens)
    }

    /// How many cuts lie in its template.
    pub(super) fn template_cuts(&self) -> usize {
        self.template.map_or(0, |template| template.cuts)
    }
}
