//! Access of clients: their tokens, and what each token allows.
//!
//! Tokens are in the store ([`evenstep_store::access`]), which has only the SHA-256 of their secret part. The predictor
//! reads them again every few seconds, so that commands and other predictors on the same store can change them.
//!
//! - [`Scope`]: what a token allows. `http::access` maps each route to scopes.
//! - [`JobPattern`]: the jobs for which it allows that.
//! - [`Token`]: the text that a client sends.
//! - [`Access`]: the known tokens; identifies the [`Caller`] of a request.
//! - [`Limits`]: the jobs, workers and rates of each token.
//! - [`Shares`]: pools of which one token cannot take all.
//! - [`Hosts`]: the names at which clients without a token may reach the predictor.
//! - `throttle`: clients that send wrong tokens must wait.
//! - `sessions`: the page's cookies.
//! - [`command`]: `evenstep-predictor token`.

mod caller;
pub mod command;
mod follow;
mod hosts;
mod known;
mod limits;
mod options;
mod pattern;
mod scope;
mod sessions;
mod shares;
mod throttle;
mod token;

pub use caller::Caller;
pub use follow::{Refresher, follow, follow_limits, store_uses};
pub use hosts::{HostName, Hosts};
pub use known::{Access, Auth, Credentials, Denied};
pub use limits::{Limit, Limits, TooFast, Turn, Used};
pub use options::log_audit;
pub use pattern::JobPattern;
pub use scope::Scope;
pub use sessions::{SESSION_S, SessionKey};
pub use shares::{Full, Share, Shares};
pub use token::{Token, secrets};
