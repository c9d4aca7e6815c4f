//! Protection of users whose browser shows pages of other sites: such a page can send requests to the predictor, from
//! within the user's network.
//!
//! - A page can only read and change something if the browser takes the predictor for its own server: see [`Hosts`].
//! - Without reading the response, a form or script of a page can send a `POST` with a body of three content types, of
//!   which JSON is none. The browser names the page's site in `Origin`.

use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, header};

use super::super::problem::ErrorResponse;
use crate::access::{Caller, Hosts};

/// Relation of the page to the predictor, set by browsers.
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// Paths without a check of the host name: load balancers and service managers may use other names, and the
/// responses say nothing of jobs.
const PROBES: [&str; 2] = ["/healthz", "/readyz"];

/// Checks that no page of another site caused a request.
///
/// # Errors
/// 421 for a foreign host name, 403 for a foreign origin, 415 for another content type than JSON.
pub fn check(parts: &Parts, has_body: bool, caller: &Caller, hosts: &Hosts) -> Result<(), ErrorResponse> {
    if caller.token_id().is_none() && !PROBES.contains(&parts.uri.path()) {
        check_host(&parts.headers, hosts)?;
    }
    let changes = !matches!(parts.method, Method::GET | Method::HEAD);
    if changes {
        check_origin(&parts.headers)?;
    }
    // Browsers send a `DELETE` of another site only if the predictor allows it first, which it never does.
    if changes && (has_body || parts.method != Method::DELETE) {
        check_content_type(&parts.headers)?;
    }
    Ok(())
}

/// Checks that a request names one host. A proxy and the predictor could read two differently (RFC 9112, section 3.2).
///
/// # Errors
/// 400.
pub fn check_one_host(headers: &HeaderMap) -> Result<(), ErrorResponse> {
    let count = headers.get_all(header::HOST).iter().count();
    if count <= 1 {
        return Ok(());
    }
    let detail = format!("the request has {count} Host headers and must have one");
    Err(ErrorResponse::new(StatusCode::BAD_REQUEST, "malformed", "Several hosts", detail))
}

fn check_host(headers: &HeaderMap, hosts: &Hosts) -> Result<(), ErrorResponse> {
    // A client that sends none is no browser.
    let sent = headers.get(header::HOST).map(|host| host.to_str().unwrap_or("?"));
    let Some(host) = sent.filter(|host| !hosts.accepts(host)) else { return Ok(()) };
    let detail = format!(
        "host {host:?} is not a known name of this predictor; use its IP address, add the name with --allow-host, or send a token"
    );
    Err(ErrorResponse::new(StatusCode::MISDIRECTED_REQUEST, "foreign-host", "Foreign host", detail))
}

/// The browser names the site of the page.
fn check_origin(headers: &HeaderMap) -> Result<(), ErrorResponse> {
    let foreign = |detail: String| {
        Err(ErrorResponse::new(StatusCode::FORBIDDEN, "foreign-origin", "Foreign origin", detail))
    };
    let rule = "only its own pages may change something";
    if let Some(origin) = headers.get(header::ORIGIN) {
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let origin = origin.to_str().unwrap_or("?");
        // The scheme may differ: a proxy may end TLS.
        let of_origin = origin.split_once("://").map(|(_, host)| host);
        if of_origin.is_none() || of_origin != host {
            let host = host.unwrap_or_default();
            return foreign(format!("origin {origin:?} is not this service, {host:?}; {rule}"));
        }
    }
    let site = headers.get(SITE).map(|site| site.to_str().unwrap_or("?"));
    match site.filter(|site| !matches!(*site, "same-origin" | "none")) {
        Some(site) => foreign(format!("sec-fetch-site {site:?} names a page of another service; {rule}")),
        None => Ok(()),
    }
}

/// A page of another site cannot send JSON: the browser first requires a permission of the predictor.
fn check_content_type(headers: &HeaderMap) -> Result<(), ErrorResponse> {
    let sent = headers.get(header::CONTENT_TYPE).map(|value| value.to_str().unwrap_or("?"));
    let essence = |sent: &str| sent.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if sent.is_some_and(|sent| essence(sent) == "application/json") {
        return Ok(());
    }
    let sent = sent.map_or_else(|| "missing".to_owned(), |sent| format!("{sent:?}"));
    let detail =
        format!("content-type is {sent} and must be application/json; set it in the request's headers");
    let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    Err(ErrorResponse::new(status, "wrong-content-type", "Wrong content type", detail))
}
