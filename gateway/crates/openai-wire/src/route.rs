//! The routes that are balanced over replicas: one closed list, matched exactly.
//!
//! Prefixes are not routes: a path that merely begins like one of these is unknown, so nothing like `/v1/../admin` can
//! be taken for one.

/// A balanced route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Route {
    /// `POST /v1/chat/completions`.
    ChatCompletions,
    /// `POST /v1/completions`.
    Completions,
    /// `POST /v1/embeddings`.
    Embeddings,
    /// `POST /v1/responses`.
    Responses,
    /// `POST /v1/messages` (Anthropic's shape).
    Messages,
    /// `POST /v1/rerank`.
    Rerank,
    /// `POST /v1/systemone` (decision models: one forward pass, no text).
    SystemOne,
}

impl Route {
    /// Every route, in the order of their bits.
    pub const ALL: [Self; 7] = [
        Self::ChatCompletions,
        Self::Completions,
        Self::Embeddings,
        Self::Responses,
        Self::Messages,
        Self::Rerank,
        Self::SystemOne,
    ];

    /// The path, as clients send it and replicas get it.
    pub const fn path(self) -> &'static str {
        match self {
            Self::ChatCompletions => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
            Self::Embeddings => "/v1/embeddings",
            Self::Responses => "/v1/responses",
            Self::Messages => "/v1/messages",
            Self::Rerank => "/v1/rerank",
            Self::SystemOne => "/v1/systemone",
        }
    }

    /// The name in metrics and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ChatCompletions => "chat_completions",
            Self::Completions => "completions",
            Self::Embeddings => "embeddings",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::Rerank => "rerank",
            Self::SystemOne => "systemone",
        }
    }

    /// The route of exactly this path (no query, no trailing slash, no escapes).
    pub fn from_path(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|route| route.path() == path)
    }

    /// This route's bit in a set of routes; each route has its own.
    pub const fn bit(self) -> u8 {
        1 << self as u8
    }

    /// Whether an answer may come as server-sent events.
    pub const fn streams(self) -> bool {
        matches!(self, Self::ChatCompletions | Self::Completions | Self::Responses | Self::Messages)
    }

    /// Whether `stream_options.include_usage` means something here.
    pub const fn has_stream_options(self) -> bool {
        matches!(self, Self::ChatCompletions | Self::Completions)
    }

    /// The parameter that holds the text the model reads.
    pub const fn prompt_param(self) -> &'static str {
        match self {
            Self::ChatCompletions | Self::Messages => "messages",
            Self::Completions => "prompt",
            Self::Embeddings | Self::Responses => "input",
            Self::Rerank => "documents",
            Self::SystemOne => "state",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_path_is_a_route() {
        for route in Route::ALL {
            assert_eq!(Route::from_path(route.path()), Some(route));
        }
        for path in ["/v1/chat/completions/", "/v1/chat", "/v1/../v1/messages", "/V1/messages", "/v1/messages?x=1", ""]
        {
            assert_eq!(Route::from_path(path), None, "{path}");
        }
    }

    #[test]
    fn each_route_has_its_own_bit() {
        let all = Route::ALL.into_iter().fold(0_u8, |set, route| {
            assert_eq!(set & route.bit(), 0);
            set | route.bit()
        });
        assert_eq!(all.count_ones(), 7);
    }
}
