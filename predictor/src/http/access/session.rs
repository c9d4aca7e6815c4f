//! Sessions of the page: a browser exchanges a token for a cookie that scripts cannot read.

use std::net::IpAddr;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use evenstep_protocol::{SessionView, SignIn};
use evenstep_store::Change;
use evenstep_store::access::AccessChange;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::super::Api;
use super::super::body::Json;
use super::super::problem::ErrorResponse;
use super::{COOKIE, ClientAddress, session_key};
use crate::access::{Access, Auth, Caller, Denied, SESSION_S, secrets};

pub fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(get, sign_in, sign_out))
}

/// Get what the client may do.
#[utoipa::path(
    get, path = "/v1/session", tag = "access",
    responses((status = 200, description = "Scopes and jobs of the client", body = SessionView))
)]
async fn get(State(api): State<Api>, caller: Caller) -> axum::Json<SessionView> {
    axum::Json(view(&api.access, &caller))
}

/// Exchange a token for a session cookie.
#[utoipa::path(
    post, path = "/v1/session", tag = "access", request_body = SignIn,
    responses(
        (status = 200, description = "The session has begun; Set-Cookie has its cookie", body = SessionView),
        (status = 401, description = "The token is invalid"),
        (status = 409, description = "The predictor requires no tokens"),
        (status = 429, description = "Other tokens have all sessions"),
    )
)]
async fn sign_in(
    State(api): State<Api>,
    address: Option<axum::Extension<ClientAddress>>,
    Json(sent): Json<SignIn>,
) -> Result<Response, ErrorResponse> {
    if api.access.auth() == Auth::None {
        let detail = "the predictor runs with --auth none and has no sessions; send requests without a token";
        return Err(ErrorResponse::new(StatusCode::CONFLICT, "conflict", "No tokens", detail));
    }
    api.refresher.know(&sent.token).await;
    let address = address.map(|axum::Extension(address)| address.0);
    let begun = api.access.begin_session(&sent.token, address, &mut secrets());
    if let Err(denied) = begun {
        failed(&api, &sent.token, address, denied).await;
    }
    let (caller, key) = begun??;
    Ok((cookie(key.reveal(), SESSION_S, api.is_secure), axum::Json(view(&api.access, &caller)))
        .into_response())
}

/// Records a failed sign-in. An address that must wait has its entries already.
async fn failed(api: &Api, token: &str, address: Option<IpAddr>, denied: Denied) {
    if matches!(denied, Denied::Throttled(_)) {
        return;
    }
    let entry = Caller::audit_failed_sign_in(token, address, denied);
    let at = address.map(|address| address.to_string());
    tracing::warn!(address = at, subject = entry.subject, "a sign-in failed");
    let record = Change::Access(AccessChange::Audit(entry));
    if let Err(error) = api.jobs.store().write(vec![record], api.access.now_unix_ms()).await {
        tracing::warn!(%error, "cannot store a failed sign-in in the audit log");
    }
}

/// End the session of the cookie. Has no effect without one.
#[utoipa::path(
    delete, path = "/v1/session", tag = "access",
    responses((status = 204, description = "The client has no session"))
)]
async fn sign_out(State(api): State<Api>, headers: HeaderMap) -> Response {
    if let Some(key) = session_key(&headers) {
        api.access.end_session(key);
    }
    (cookie("", 0, api.is_secure), StatusCode::NO_CONTENT).into_response()
}

fn cookie(value: &str, age_s: i64, is_secure: bool) -> [(header::HeaderName, HeaderValue); 1] {
    let secure = if is_secure { "; Secure" } else { "" };
    let text = format!("{COOKIE}={value}; Path=/; Max-Age={age_s}; HttpOnly; SameSite=Strict{secure}");
    // Keys are hexadecimal, which is always valid in a header.
    [(header::SET_COOKIE, HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("")))]
}

fn view(access: &Access, caller: &Caller) -> SessionView {
    let auth = match access.auth() {
        Auth::None => "none",
        Auth::Optional => "optional",
        Auth::Required => "required",
    };
    SessionView {
        auth: auth.to_owned(),
        token_id: caller.token_id().map(str::to_owned),
        scopes: caller.scopes().into_iter().map(str::to_owned).collect(),
        jobs: caller.jobs().to_string(),
    }
}
