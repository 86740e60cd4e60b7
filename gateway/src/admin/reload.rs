//! Reading the configuration again.

use async_trait::async_trait;
use axum::{Extension, Json, extract::State};

use super::{
    Shared,
    answer::AdminError,
    guard::Caller,
    view::{ErrorView, ReloadView},
};
use crate::config::{self, Changes};

/// What can read the configuration again.
#[async_trait]
pub trait Reload: Send + Sync {
    /// Reads the configuration and applies what changed; all of it or nothing. `who` is for the log.
    async fn reload(&self, who: &str) -> Result<Changes, ReloadRefused>;

    /// `[admin]` as it is in force now.
    fn admin(&self) -> config::Admin;
}

/// A reload that changed nothing.
#[derive(Debug, thiserror::Error)]
#[error("nothing was changed:\n{0}")]
pub struct ReloadRefused(
    /// All mistakes, one a line.
    pub String,
);

/// Reads the configuration again and applies what changed.
#[utoipa::path(post, path = "/admin/reload", tag = "process",
    responses((status = 200, description = "What changed", body = ReloadView),
        (status = 422, description = "The configuration has mistakes; nothing was changed", body = ErrorView)))]
pub(super) async fn reload(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<ReloadView>, AdminError> {
    let Changes { applied, needs_restart } = shared.app.reload.reload(&caller.who()).await?;
    Ok(Json(ReloadView { applied, needs_restart }))
}
