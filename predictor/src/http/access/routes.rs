//! The scopes of each route, the only place that names them. docs/reference/access.md has the same table.

use axum::http::Method;

use crate::access::Scope::{self, Agent, Metrics, Operator, Trainer, Viewer};

/// The clients that may use a route. An admin may use all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowed {
    /// Everyone, also without a token.
    Everyone,
    /// Clients with one of these scopes, for their jobs.
    Scopes(&'static [Scope]),
    /// Clients with one of these scopes for all jobs.
    AllJobs(&'static [Scope]),
}

use Allowed::{AllJobs, Everyone, Scopes};

/// Readers of jobs.
const READERS: Allowed = Scopes(&[Trainer, Viewer, Operator]);

/// Method, path and scopes of each route.
pub const ROUTES: &[(&str, &str, Allowed)] = &[
    ("GET", "/healthz", Everyone),
    ("GET", "/readyz", Everyone),
    ("GET", "/", Everyone),
    ("GET", "/docs", Everyone),
    ("GET", "/docs/", Everyone),
    ("GET", "/ui/{*path}", Everyone),
    ("GET", "/openapi.json", Everyone),
    ("GET", "/v1/operator", Everyone),
    ("GET", "/v1/session", Everyone),
    ("POST", "/v1/session", Everyone),
    ("DELETE", "/v1/session", Everyone),
    ("POST", "/allocate", Scopes(&[Trainer])),
    ("GET", "/allocate", READERS),
    ("GET", "/v1/jobs", READERS),
    ("PUT", "/v1/jobs/{job_id}", Scopes(&[Trainer, Operator])),
    ("GET", "/v1/jobs/{job_id}", READERS),
    ("DELETE", "/v1/jobs/{job_id}", Scopes(&[Operator])),
    ("POST", "/v1/jobs/{job_id}/workers", Scopes(&[Trainer])),
    ("GET", "/v1/jobs/{job_id}/workers", READERS),
    ("DELETE", "/v1/jobs/{job_id}/workers/{worker}", Scopes(&[Trainer, Operator])),
    ("POST", "/v1/jobs/{job_id}/workers/{worker}/oom", Scopes(&[Trainer])),
    ("PUT", "/v1/jobs/{job_id}/workers/{worker}/override", Scopes(&[Operator])),
    ("DELETE", "/v1/jobs/{job_id}/workers/{worker}/override", Scopes(&[Operator])),
    ("GET", "/v1/jobs/{job_id}/forecast", READERS),
    ("GET", "/v1/jobs/{job_id}/allocations", READERS),
    ("GET", "/v1/jobs/{job_id}/speeds", READERS),
    ("GET", "/v1/jobs/{job_id}/live", READERS),
    ("GET", "/v1/jobs/{job_id}/history", READERS),
    ("GET", "/v1/jobs/{job_id}/summary", READERS),
    ("GET", "/v1/jobs/{job_id}/log", READERS),
    ("GET", "/v1/live", READERS),
    ("POST", "/v1/plan/burst", READERS),
    ("POST", "/v1/telemetry", Scopes(&[Agent])),
    ("GET", "/v1/nodes", READERS),
    ("GET", "/v1/nodes/{node}/samples", READERS),
    ("GET", "/v1/nodes/{node}/health", Scopes(&[Agent, Trainer, Viewer, Operator])),
    ("GET", "/v1/store", AllJobs(&[Viewer, Operator])),
    ("GET", "/v1/reports", AllJobs(&[Viewer, Operator])),
    ("GET", "/reports/{name}", AllJobs(&[Viewer, Operator])),
    ("GET", "/metrics", Scopes(&[Metrics])),
];

/// Returns who may use a route; `None` for an unknown route.
pub fn allowed(method: &Method, path: &str) -> Option<Allowed> {
    let method = if method == Method::HEAD { "GET" } else { method.as_str() };
    ROUTES.iter().find(|(known, of, _)| *known == method && *of == path).map(|(.., allowed)| *allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = include_str!("../../../../docs/reference/access.md");

    fn table() -> String {
        let cell = |allowed: &Allowed| {
            let names =
                |scopes: &[Scope]| scopes.iter().map(|scope| scope.name()).collect::<Vec<_>>().join(", ");
            match allowed {
                Everyone => "everyone".to_owned(),
                Scopes(scopes) => names(scopes),
                AllJobs(scopes) => format!("{}; all jobs", names(scopes)),
            }
        };
        let row = |(method, path, allowed): &(&str, &str, Allowed)| {
            format!("| `{method} {path}` | {} |\n", cell(allowed))
        };
        format!("| route | scopes |\n|---|---|\n{}", ROUTES.iter().map(row).collect::<String>())
    }

    #[test]
    fn the_documentation_has_this_table() {
        let table = table();
        println!("{table}");
        assert!(
            DOCUMENT.contains(&format!("-->\n{table}<!-- end of routes -->")),
            "replace the table in docs/reference/access.md"
        );
    }

    #[test]
    fn unknown_routes_are_for_nobody() {
        assert_eq!(allowed(&Method::HEAD, "/v1/jobs"), Some(READERS));
        assert_eq!(allowed(&Method::PATCH, "/v1/jobs"), None);
        assert_eq!(allowed(&Method::GET, ""), None);
    }
}
