//! `/`, `/docs/` and `/ui/..`: the page of the service and the page of its API.
//!
//! The files are part of the program, so the page works without a network. It loads nothing from other hosts
//! and sends nothing to them; the content security policy `POLICY` enforces this.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{OriginalUri, Path};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::{Api, fallback};

/// Content security policy of the page: its own scripts and styles, requests to this service, frames of this
/// service. Nothing inline.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
    frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// Policy for foreign pages such as reports: they run in a sandbox without access to this origin.
pub const FOREIGN_POLICY: &str = "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
    img-src data:; font-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'";
/// Policy for the empty page that receives a report and shows it with its own script.
const VIEWER_POLICY: &str = "sandbox allow-scripts; default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'unsafe-inline'; \
    img-src data:; font-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'";
/// Browsers keep the file but revalidate it on each request, so that a new version of the service shows its
/// own page at once.
const CACHE: HeaderValue = HeaderValue::from_static("no-cache");

/// Files of a folder, by their paths below `/ui`.
macro_rules! files {
    ($folder:literal $below:literal: $($path:literal)*) => {
        [$((concat!($below, $path), include_bytes!(concat!($folder, $path)).as_slice())),*]
    };
}

/// Files of `src/ui`.
const FILES: [(&str, &[u8]); 45] = files!("../ui/" "":
    "index.html" "first.js" "mark.svg" "base.css" "parts.css" "finish.css"
    "main.js" "api.js" "connection.js" "operator.js" "palette.js" "poll.js" "readings.js" "samples.js" "session.js" "sorted.js" "stream.js" "theme.js"
    "job/bins.js" "job/charts.js" "job/chosen.js" "job/finish.js" "job/heat.js" "job/history.js" "job/log.js" "job/models.js" "job/picker.js"
    "job/range.js" "job/summary.js" "job/workers.js"
    "views/glossary.js" "views/job.js" "views/jobs.js" "views/node.js" "views/nodes.js" "views/reports.js" "views/store.js"
    "views/worker.js"
    "docs.html" "docs/docs.css" "docs/main.js" "docs/request.js" "docs/schema.js"
    "viewer.html" "viewer.js"
);

/// Files that the page shares with reports, in the folder `crates/report/charts`.
const SHARED: [(&str, &[u8]); 9] = files!("../../../crates/report/charts/" "charts/":
    "colours.js" "dom.js" "figure.js" "format.js" "frame.js" "line.js" "style.css" "uplot/uPlot.iife.min.js" "uplot/uPlot.min.css"
);

/// The words of the page, in the folder `docs` at the top of the repository.
const DOCUMENTS: [(&str, &[u8]); 1] = files!("../../../docs/" "": "glossary.md");

/// A file with its response headers.
#[derive(Debug)]
struct File {
    bytes: &'static [u8],
    content_type: HeaderValue,
    policy: HeaderValue,
    etag: HeaderValue,
}

/// Routes of the page and its files.
pub fn router() -> Router<Api> {
    let files: Arc<HashMap<&str, File>> = Arc::new(
        FILES
            .iter()
            .chain(&SHARED)
            .chain(&DOCUMENTS)
            .map(|(path, bytes)| (*path, File::new(path, bytes)))
            .collect(),
    );
    let page = |path: &'static str| {
        let files = files.clone();
        get(move |headers: HeaderMap, OriginalUri(uri): OriginalUri| async move {
            match files.get(path) {
                Some(file) => file.answer(&headers),
                None => fallback::unknown_path(uri, Body::empty()).await.into_response(),
            }
        })
    };
    let (index, docs) = (page("index.html"), page("docs.html"));
    let file = move |headers: HeaderMap, Path(path): Path<String>, OriginalUri(uri): OriginalUri| async move {
        match files.get(path.as_str()) {
            Some(file) => file.answer(&headers),
            None => fallback::unknown_path(uri, Body::empty()).await.into_response(),
        }
    };
    // Relative, for a proxy that serves the predictor below a path.
    let to_docs = get(|| async { (StatusCode::PERMANENT_REDIRECT, [(header::LOCATION, "docs/")]) });
    Router::new()
        .route("/", index)
        .route("/docs", to_docs)
        .route("/docs/", docs)
        .route("/ui/{*path}", get(file))
}

impl File {
    fn new(path: &str, bytes: &'static [u8]) -> Self {
        let content_type = match path.rsplit_once('.').map_or("", |(_, kind)| kind) {
            "html" => "text/html; charset=utf-8",
            "js" => "text/javascript; charset=utf-8",
            "css" => "text/css; charset=utf-8",
            "svg" => "image/svg+xml",
            _ => "text/plain; charset=utf-8",
        };
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        let etag = HeaderValue::from_str(&format!("\"{:016x}\"", hasher.finish()));
        Self {
            bytes,
            content_type: HeaderValue::from_static(content_type),
            policy: HeaderValue::from_static(if path == "viewer.html" { VIEWER_POLICY } else { POLICY }),
            // Hexadecimal digits in quotes are always a valid header value.
            etag: etag.unwrap_or(HeaderValue::from_static("\"\"")),
        }
    }

    fn answer(&self, headers: &HeaderMap) -> Response {
        let kept =
            headers.get(header::IF_NONE_MATCH).and_then(|tags| tags.to_str().ok()).is_some_and(|tags| {
                tags.split(',')
                    .any(|tag| tag.trim().trim_start_matches("W/").as_bytes() == self.etag.as_bytes())
            });
        let own = [
            (header::CONTENT_TYPE, self.content_type.clone()),
            (header::CONTENT_SECURITY_POLICY, self.policy.clone()),
            (header::ETAG, self.etag.clone()),
            (header::CACHE_CONTROL, CACHE),
        ];
        if kept {
            (StatusCode::NOT_MODIFIED, own, security_headers()).into_response()
        } else {
            (own, security_headers(), self.bytes).into_response()
        }
    }
}

/// Headers of everything that a browser displays: no guessing of content types, and no `Referer` to other
/// sites.
pub fn security_headers() -> [(HeaderName, HeaderValue); 2] {
    [
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::{FILES, SHARED};

    /// Limit of a first visit in bytes, with all files of the page.
    const FIRST_LOAD_MAX: usize = 300_000;

    fn all() -> impl Iterator<Item = &'static (&'static str, &'static [u8])> {
        FILES.iter().chain(&SHARED)
    }

    fn files(folder: &Path, into: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                files(&path, into);
            } else {
                into.push(path);
            }
        }
    }

    /// A file that is added but not served would only be missed in a browser.
    #[test]
    fn every_file_of_the_page_is_served() {
        let mut found = BTreeSet::new();
        for (folder, below) in [("src/ui", ""), ("../crates/report/charts", "charts/")] {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
            let mut paths = Vec::new();
            files(&folder, &mut paths);
            let name = |path: &PathBuf| format!("{below}{}", path.strip_prefix(&folder).unwrap().display());
            found.extend(paths.iter().map(name));
        }
        found.retain(|path| !path.ends_with("README.md") && !path.ends_with("LICENSE"));
        let served: BTreeSet<String> = all().map(|(path, _)| (*path).to_owned()).collect();
        assert_eq!(served, found);
    }

    #[test]
    fn a_first_visit_takes_less_than_300_kilobytes() {
        let bytes: usize = all().map(|(_, bytes)| bytes.len()).sum();
        println!("the page has {bytes} bytes in {} files", all().count());
        assert!(bytes < FIRST_LOAD_MAX, "{bytes}");
    }

    /// The policy forbids inline code, so the page must not need it.
    #[test]
    fn no_inline_scripts_and_no_foreign_origins() {
        for (path, bytes) in all().filter(|(path, _)| !path.contains("uplot/")) {
            let text = std::str::from_utf8(bytes).unwrap();
            let foreign = text
                .match_indices("://")
                .map(|(at, _)| &text[at.saturating_sub(6)..(at + 24).min(text.len())]);
            let foreign: Vec<&str> = foreign.filter(|near| !near.contains("www.w3.org/2000/svg")).collect();
            assert!(foreign.is_empty(), "{path}: {foreign:?}");
            if path.ends_with(".html") {
                assert!(!text.contains("<style") && !text.contains(" style="), "{path}");
                assert!(
                    text.matches("<script").count()
                        == text.matches(" src=").count() - text.matches("<img").count(),
                    "{path}"
                );
            }
        }
    }
}
