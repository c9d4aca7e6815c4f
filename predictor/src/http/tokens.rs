//! Tokens and the audit log, for admins.

use axum::extract::State;
use axum::http::StatusCode;
use evenstep_protocol::{AuditEntryView, AuditView, CreatedToken, NewToken, TokensView};
use evenstep_store::Change;
use evenstep_store::access::{AccessChange, TOKENS_MAX};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::body::{InPath, InQuery, Json, within};
use super::problem::ErrorResponse;
use crate::access::{Caller, TokenOptions, log_audit, secrets};

/// Limit of audit entries in one response.
const LIMIT_MAX: u64 = 1_000;
/// Audit entries in one response if the request sets no limit.
const LIMIT_DEFAULT: u64 = 100;

pub fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(revoke)).routes(routes!(audit))
}

/// List all tokens, without their secrets.
#[utoipa::path(
    get, path = "/v1/tokens", tag = "access",
    responses((status = 200, description = "The tokens", body = TokensView))
)]
async fn list(State(api): State<Api>) -> Result<axum::Json<TokensView>, ErrorResponse> {
    let stored = api.jobs.store().tokens().await?;
    Ok(axum::Json(TokensView { tokens: stored.iter().map(crate::access::view).collect() }))
}

/// Create a token.
#[utoipa::path(
    post, path = "/v1/tokens", tag = "access", request_body = NewToken,
    responses(
        (status = 201, description = "The token, which is shown only now", body = CreatedToken),
        (status = 409, description = "The limit of tokens is reached"),
    )
)]
async fn create(
    State(api): State<Api>,
    caller: Caller,
    Json(wanted): Json<NewToken>,
) -> Result<(StatusCode, axum::Json<CreatedToken>), ErrorResponse> {
    let options = TokenOptions::try_from(wanted).map_err(ErrorResponse::invalid)?;
    let store = api.jobs.store();
    if store.tokens().await?.len() >= TOKENS_MAX {
        let detail = format!("{TOKENS_MAX} tokens exist, the limit; revoke one");
        return Err(ErrorResponse::new(StatusCode::CONFLICT, "conflict", "Too many tokens", detail));
    }
    let now_unix_ms = api.access.now_unix_ms();
    let (token, stored) = options.create(now_unix_ms, &mut secrets());
    let entry = caller.audit("token.create", options.subject(token.id()));
    let view = crate::access::view(&stored);
    let changes = [AccessChange::Create(stored), AccessChange::Audit(entry.clone())];
    store.write(changes.map(Change::Access).into(), now_unix_ms).await?;
    log_audit(&entry);
    api.access.replace(store.tokens().await?);
    Ok((StatusCode::CREATED, axum::Json(CreatedToken { token: token.reveal(), view })))
}

/// Revoke a token. Takes effect at once here, and within seconds at other predictors on the same store.
#[utoipa::path(
    delete, path = "/v1/tokens/{token_id}", tag = "access",
    responses((status = 204, description = "The token no longer exists"))
)]
async fn revoke(
    State(api): State<Api>,
    caller: Caller,
    InPath(token_id): InPath<String>,
) -> Result<StatusCode, ErrorResponse> {
    let store = api.jobs.store();
    if !store.tokens().await?.iter().any(|token| token.token_id == token_id) {
        let detail = format!("token {token_id:?} does not exist; GET /v1/tokens lists all tokens");
        return Err(ErrorResponse::new(StatusCode::NOT_FOUND, "unknown-token", "Unknown token", detail));
    }
    let entry = caller.audit("token.revoke", token_id.clone());
    let changes = [AccessChange::Revoke { token_id }, AccessChange::Audit(entry.clone())];
    store.write(changes.map(Change::Access).into(), api.access.now_unix_ms()).await?;
    log_audit(&entry);
    api.access.replace(store.tokens().await?);
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct LimitQuery {
    /// Limit of entries, 1 to 1,000; default 100.
    #[param(minimum = 1, maximum = 1_000)]
    limit: Option<u64>,
}

/// Get the newest entries of the audit log.
#[utoipa::path(
    get, path = "/v1/audit", tag = "access", params(LimitQuery),
    responses((status = 200, description = "The entries, the newest first", body = AuditView))
)]
async fn audit(
    State(api): State<Api>,
    InQuery(newest): InQuery<LimitQuery>,
) -> Result<axum::Json<AuditView>, ErrorResponse> {
    let limit = newest.limit.unwrap_or(LIMIT_DEFAULT);
    within("limit", limit, 1..=LIMIT_MAX)?;
    let entries = api.jobs.store().view().await?.audit(u32::try_from(limit).unwrap_or(u32::MAX)).await?;
    let entries = entries.into_iter().map(|stored| AuditEntryView {
        at_unix_ms: stored.at_unix_ms,
        actor: stored.entry.actor,
        address: stored.entry.address,
        action: stored.entry.action,
        subject: stored.entry.subject,
    });
    Ok(axum::Json(AuditView { entries: entries.collect() }))
}
