//! The engines that phones run, as far as their HTTP differs.

use openai_wire::{Engine, Route};
use scheduler::{Release, RouteSet};

/// How a replica speaks. Stated by the operator, or found by the first probe and remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dialect {
    /// llama.cpp's server.
    LlamaServer,
    /// The QVAC app.
    Qvac,
    /// `mnncli serve`: no health route, one constant model name whatever is loaded.
    Mnn,
    /// MNN's chat app for Android.
    MnnApp,
    /// The Laya app: decisions, no text.
    Laya,
    /// Something else that speaks OpenAI's API.
    OpenAi,
}

impl Dialect {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::LlamaServer, Self::Qvac, Self::Mnn, Self::MnnApp, Self::Laya, Self::OpenAi];

    /// The name in the configuration, the admin API, logs and the store.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LlamaServer => "llama",
            Self::Qvac => "qvac",
            Self::Mnn => "mnn",
            Self::MnnApp => "mnn_app",
            Self::Laya => "laya",
            Self::OpenAi => "openai",
        }
    }

    /// The dialect of that name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dialect| dialect.name() == name)
    }

    /// What it serves when nothing more is known. llama-server has more routes, found by asking; another OpenAI server
    /// can't be asked without running something, so it is trusted with all.
    pub fn routes(self) -> RouteSet {
        match self {
            Self::LlamaServer => routes(&[Route::ChatCompletions, Route::Completions]),
            Self::Qvac => routes(&[Route::ChatCompletions]),
            Self::Mnn | Self::MnnApp => routes(&[Route::ChatCompletions, Route::Messages]),
            Self::Laya => routes(&[Route::SystemOne]),
            Self::OpenAi => routes(&Route::ALL),
        }
    }

    /// Whether the names in its model list say what is loaded.
    pub const fn lists_what_it_serves(self) -> bool {
        match self {
            Self::LlamaServer | Self::Qvac | Self::MnnApp | Self::OpenAi => true,
            Self::Mnn | Self::Laya => false,
        }
    }

    /// What to expect of the answers it writes. `mnncli` states constants for token counts; neither server of MNN looks at
    /// `max_tokens` or `stop`.
    pub const fn engine(self) -> Engine {
        Engine { counts: !matches!(self, Self::Mnn), obeys: !matches!(self, Self::Mnn | Self::MnnApp) }
    }

    /// Whether it writes its text as a stream, if it writes text at all.
    pub const fn streams(self) -> bool {
        !matches!(self, Self::Laya)
    }

    /// When the slot of broken-off work is free again. The servers of MNN don't notice that nobody waits; of the others only
    /// llama-server can be asked, unless its list of slots is switched off.
    pub const fn release(self, lists_slots: bool) -> Release {
        match self {
            Self::LlamaServer if lists_slots => Release::Shown,
            Self::Mnn | Self::MnnApp => Release::RunsOn,
            Self::LlamaServer | Self::Qvac | Self::Laya | Self::OpenAi => Release::AtOnce,
        }
    }

    /// Whether it says on request how far it has read a prompt (`return_progress`). The others are not asked: what a strict
    /// engine does with a field that it does not know is its own affair.
    pub const fn reads_progress(self) -> bool {
        matches!(self, Self::LlamaServer)
    }
}

/// A set of routes, as the scheduler has it.
pub fn routes(list: &[Route]) -> RouteSet {
    RouteSet(list.iter().fold(0, |set, route| set | u16::from(route.bit())))
}

/// A route's bit position in a [`RouteSet`], as a `RequestSpec` names it.
pub const fn position(route: Route) -> u8 {
    route as u8
}

/// The routes of a set, for people.
pub fn route_names(set: RouteSet) -> Vec<&'static str> {
    Route::ALL.into_iter().filter(|route| set.contains(position(*route))).map(Route::name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dialect_is_found_by_its_name() {
        for dialect in Dialect::ALL {
            assert_eq!(Dialect::by_name(dialect.name()), Some(dialect));
        }
        assert_eq!(Dialect::by_name("Llama"), None);
    }

    #[test]
    fn a_route_is_in_the_set_of_itself_and_in_no_other() {
        for route in Route::ALL {
            let others = Route::ALL.into_iter().filter(|other| routes(&[route]).contains(position(*other)));
            assert_eq!(others.collect::<Vec<_>>(), [route]);
        }
    }

    #[test]
    fn cancels_are_believed_only_of_engines_that_can_neither_be_asked_nor_are_known_to_run_on() {
        let release = |dialect: Dialect| dialect.release(true);
        assert_eq!(Dialect::ALL.map(release).iter().filter(|release| **release == Release::AtOnce).count(), 3);
        assert_eq!((release(Dialect::LlamaServer), release(Dialect::Mnn)), (Release::Shown, Release::RunsOn));
        assert_eq!(Dialect::LlamaServer.release(false), Release::AtOnce);
    }

    #[test]
    fn an_engine_that_states_constants_is_not_trusted_with_counts() {
        let counts: Vec<_> = Dialect::ALL.into_iter().filter(|dialect| !dialect.engine().counts).collect();
        let disobeys: Vec<_> = Dialect::ALL.into_iter().filter(|dialect| !dialect.engine().obeys).collect();
        assert_eq!(counts, [Dialect::Mnn]);
        assert_eq!(disobeys, [Dialect::Mnn, Dialect::MnnApp]);
    }

    #[test]
    fn an_engine_without_text_is_never_given_a_chat() {
        assert!(!Dialect::Laya.streams());
        assert!(!Dialect::Laya.routes().contains(position(Route::ChatCompletions)));
        assert_eq!(route_names(Dialect::Laya.routes()), [Route::SystemOne.name()]);
    }
}
