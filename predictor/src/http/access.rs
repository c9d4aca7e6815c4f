//! Access control: identifies the client of each request, and checks its rate, its scope and the job in the path.

mod browser;
mod routes;
mod session;

use std::convert::Infallible;
use std::time::Instant;

use axum::body::HttpBody;
use axum::extract::{FromRequestParts, MatchedPath, RawPathParams, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use evenstep_protocol::JobId;
use evenstep_server::ClientAddress;

use super::Api;
use super::admission::discard;
use super::problem::ErrorResponse;
use crate::access::{Access, Auth, Caller, Credentials, Denied};
use routes::allowed;
pub use routes::{Allowed, ROUTES};
pub use session::router;

/// Name of the page's cookie.
const COOKIE: &str = "evenstep_session";

/// Rejects requests of clients that may not make them. Other requests get the [`Caller`] as an extension.
///
/// It runs after routing and before a body is read. A route that is missing in [`ROUTES`] is rejected.
pub async fn check(State(api): State<Api>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    if let Some(bearer) = bearer(&parts.headers) {
        api.refresher.know(bearer).await;
    }
    match authorize(&api, &mut parts, !body.is_end_stream()).await {
        Ok(caller) => {
            parts.extensions.insert(caller);
            next.run(Request::from_parts(parts, body)).await
        }
        // A client that waits for `100 Continue` sends no body after another response.
        Err(rejection) if parts.headers.contains_key(header::EXPECT) => {
            rejection.body_unread().into_response()
        }
        Err(rejection) => {
            discard(body).await;
            rejection.into_response()
        }
    }
}

async fn authorize(api: &Api, parts: &mut Parts, has_body: bool) -> Result<Caller, ErrorResponse> {
    browser::check_one_host(&parts.headers)?;
    let access = &api.access;
    let route = parts.extensions.get::<MatchedPath>().cloned();
    let route = route.as_ref().map_or("", MatchedPath::as_str);
    let allowed = allowed(&parts.method, route);
    let identified = access.identify(Credentials {
        bearer: bearer(&parts.headers),
        session: session_key(&parts.headers),
        address: parts.extensions.get::<ClientAddress>().map(|address| address.0),
    });
    let caller = match (identified, allowed) {
        (Ok(caller), _) => caller,
        // The page must be able to open, and to sign in again.
        (Err(denied), Some(Allowed::Everyone)) if !matches!(denied, Denied::Throttled(_)) => {
            Caller::anonymous(&[])
        }
        (Err(denied), _) => return Err(denied.into()),
    };
    browser::check(parts, has_body, &caller, &api.hosts)?;
    // Requests that need no token do not count: the client could omit it.
    if allowed != Some(Allowed::Everyone) {
        api.limits.request(&caller, Instant::now())?;
    }
    match allowed {
        Some(Allowed::Everyone) => {}
        Some(Allowed::Scopes(scopes)) if caller.has(scopes) => {}
        Some(Allowed::AllJobs(scopes)) if caller.has(scopes) => {
            if !caller.jobs().is_all() {
                let detail = format!(
                    "the token is for the jobs {}, and this request is about all jobs",
                    caller.jobs()
                );
                return Err(forbidden(detail));
            }
        }
        Some(Allowed::Scopes(scopes) | Allowed::AllJobs(scopes)) => {
            return Err(lacks_scope(access, &caller, scopes));
        }
        None => return Err(lacks_scope(access, &caller, &[])),
    }
    check_path(&caller, parts).await?;
    Ok(caller)
}

/// Checks the job in the path.
async fn check_path(caller: &Caller, parts: &mut Parts) -> Result<(), ErrorResponse> {
    if caller.jobs().is_all() {
        return Ok(());
    }
    let Ok(parameters) = RawPathParams::from_request_parts(parts, &()).await else { return Ok(()) };
    let job_id = parameters.iter().find(|(name, _)| *name == "job_id");
    // The endpoint rejects what is not a job ID.
    let Some(Ok(job_id)) = job_id.map(|(_, job_id)| JobId::new(job_id)) else { return Ok(()) };
    caller.check_job(&job_id)
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn session_key(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    cookies.flat_map(|cookies| cookies.split(';')).find_map(|cookie| {
        let (name, value) = cookie.trim().split_once('=')?;
        (name == COOKIE).then_some(value)
    })
}

impl Caller {
    /// Checks that the client may use a job.
    ///
    /// # Errors
    /// 403. The response does not depend on whether the job exists.
    pub fn check_job(&self, job_id: &JobId) -> Result<(), ErrorResponse> {
        if self.may_use(job_id) {
            return Ok(());
        }
        Err(forbidden(format!("the token is for the jobs {}, not for {job_id}", self.jobs())))
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        // `check` ran before. Without it, the client may do nothing.
        Ok(parts.extensions.get().cloned().unwrap_or_else(|| Self::anonymous(&[])))
    }
}

fn forbidden(detail: String) -> ErrorResponse {
    ErrorResponse::new(StatusCode::FORBIDDEN, "forbidden", "The token does not allow this", detail)
}

fn lacks_scope(access: &Access, caller: &Caller, scopes: &[crate::access::Scope]) -> ErrorResponse {
    let allowed: Vec<&str> = scopes.iter().map(|scope| scope.name()).chain(["admin"]).collect();
    if caller.token_id().is_some() {
        let detail = format!(
            "the token has the scope {}; this request requires {}",
            caller.scopes().join(", "),
            allowed.join(" or ")
        );
        return forbidden(detail);
    }
    let (slug, title, detail) = if access.auth() == Auth::None && access.has_operator_token() {
        let detail =
            "this request requires the operator token of the service; send Authorization: Bearer TOKEN"
                .to_owned();
        ("not-operator", "Not an operator", detail)
    } else {
        let scopes = allowed.join(" or ");
        let detail = format!(
            "this request requires a token with the scope {scopes}; send Authorization: Bearer TOKEN"
        );
        ("token-required", "Token required", detail)
    };
    ErrorResponse::new(StatusCode::UNAUTHORIZED, slug, title, detail)
}

impl From<Denied> for ErrorResponse {
    fn from(denied: Denied) -> Self {
        let (slug, title, detail) = match denied {
            Denied::Missing => (
                "token-required",
                "Token required",
                "this predictor requires a token; send Authorization: Bearer TOKEN, or set EVENSTEP_TOKEN",
            ),
            Denied::Unknown => (
                "token-unknown",
                "Unknown token",
                "the token does not exist or was revoked; create one with evenstep-predictor token create",
            ),
            Denied::Expired => (
                "token-expired",
                "Expired token",
                "the token has expired; create a new one with evenstep-predictor token create",
            ),
            Denied::SessionEnded => {
                ("session-ended", "Session ended", "the session has ended; sign in again")
            }
            Denied::Throttled(wait_s) => {
                let detail = format!("this address sent too many wrong tokens; retry in {wait_s} s");
                let status = StatusCode::TOO_MANY_REQUESTS;
                return Self::new(status, "too-many-wrong-tokens", "Too many wrong tokens", detail)
                    .retry_after(wait_s);
            }
        };
        Self::new(StatusCode::UNAUTHORIZED, slug, title, detail)
    }
}
