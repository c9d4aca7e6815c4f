//! Reports: HTML pages of backtests, simulations and trainings in one folder. Lists and serves them.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use evenstep_protocol::{ReportSummary, ReportsView};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::body::InPath;
use super::page;
use super::problem::ErrorResponse;

/// Limit of folder entries that are read.
const ENTRIES_MAX: usize = 10_000;
/// Limit of reports in the list; the newest are kept.
const REPORTS_MAX: usize = 500;
/// Size limit of a report, in bytes.
const REPORT_BYTES_MAX: u64 = 64 * 1024 * 1024;

pub fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(list))
}

/// Routes of the reports themselves. They are pages and not part of the API.
pub fn pages() -> Router<Api> {
    Router::new().route("/reports/{name}", get(open))
}

/// List the reports (*.html) in the folder of `serve --reports`, newest first.
#[utoipa::path(
    get, path = "/v1/reports", tag = "store",
    responses((status = 200, description = "The reports", body = ReportsView), (status = 503, description = "The folder cannot be read"))
)]
async fn list(State(api): State<Api>) -> Result<axum::Json<ReportsView>, ErrorResponse> {
    let Some(folder) = api.reports else { return Ok(axum::Json(ReportsView { reports: None })) };
    let reports = blocking(move || look(&folder)).await?;
    Ok(axum::Json(ReportsView { reports: Some(reports) }))
}

/// Serves one report, by the name in the list.
async fn open(State(api): State<Api>, InPath(name): InPath<String>) -> Result<Response, ErrorResponse> {
    let unknown = || {
        let detail = format!("{name:?} is not a report; /v1/reports lists all reports");
        ErrorResponse::new(StatusCode::NOT_FOUND, "unknown-report", "Unknown report", detail)
    };
    let folder = api.reports.as_ref().filter(|_| is_name(&name)).ok_or_else(unknown)?;
    let path = folder.join(&name);
    let bytes = match blocking(move || read_page(&path)).await? {
        FileContent::Page(bytes) => bytes,
        FileContent::TooLarge(bytes) => {
            let detail = format!(
                "{name:?} has {bytes} bytes, above the limit of {REPORT_BYTES_MAX}; open the file directly"
            );
            return Err(ErrorResponse::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "invalid",
                "A value breaks a rule",
                detail,
            ));
        }
        FileContent::Nothing => return Err(unknown()),
    };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(page::FOREIGN_POLICY)),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    Ok((headers, page::security_headers(), bytes).into_response())
}

/// Runs blocking file operations on a separate thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, ErrorResponse> {
    let failed = |error: io::Error| {
        tracing::error!(%error, "the folder of reports cannot be read");
        let detail = "the folder of reports cannot be read; the log has the error";
        ErrorResponse::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "Retry later", detail)
    };
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(io::Error::other(error)))
        .map_err(failed)
}

/// Whether it is the name of an HTML file directly in the folder that is not hidden.
fn is_name(name: &str) -> bool {
    name.ends_with(".html") && !name.starts_with('.') && !name.contains(['/', '\\', '\0'])
}

fn look(folder: &Path) -> io::Result<Vec<ReportSummary>> {
    let mut found: Vec<ReportSummary> =
        fs::read_dir(folder)?.take(ENTRIES_MAX).filter_map(|entry| line(&entry.ok()?)).collect();
    found.sort_by(|a, b| (b.modified_unix_ms, &a.name).cmp(&(a.modified_unix_ms, &b.name)));
    found.truncate(REPORTS_MAX);
    Ok(found)
}

/// Returns `None` for an entry that is not a report or was deleted meanwhile.
fn line(entry: &fs::DirEntry) -> Option<ReportSummary> {
    let name = entry.file_name().into_string().ok().filter(|name| is_name(name))?;
    // Metadata of the entry itself: a link may lead out of the folder.
    let file = entry.metadata().ok().filter(fs::Metadata::is_file)?;
    let modified = file.modified().ok()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    let modified_unix_ms = i64::try_from(modified.as_millis()).unwrap_or(i64::MAX);
    Some(ReportSummary { name, bytes: file.len(), modified_unix_ms })
}

enum FileContent {
    Page(Vec<u8>),
    TooLarge(u64),
    Nothing,
}

fn read_page(path: &PathBuf) -> io::Result<FileContent> {
    match fs::symlink_metadata(path) {
        Ok(file) if !file.is_file() => return Ok(FileContent::Nothing),
        Ok(file) if file.len() > REPORT_BYTES_MAX => return Ok(FileContent::TooLarge(file.len())),
        Ok(_) => {}
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidFilename) => {
            return Ok(FileContent::Nothing);
        }
        Err(error) => return Err(error),
    }
    let mut bytes = Vec::new();
    // The file may have grown since its size was checked.
    File::open(path)?.take(REPORT_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(FileContent::Page(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_of_the_folder_itself_have_names() {
        for good in ["backtest.html", "a b.html", "ü.html", "a..html"] {
            assert!(is_name(good), "{good}");
        }
        for bad in [
            "",
            ".html",
            ".hidden.html",
            "a.htm",
            "a.html.gz",
            "../a.html",
            "b/a.html",
            "b\\a.html",
            "/etc/a.html",
            "a\0.html",
            "..",
        ] {
            assert!(!is_name(bad), "{bad:?}");
        }
    }

    #[test]
    fn links_folders_and_other_files_are_no_reports() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let outside = tempfile::NamedTempFile::new().unwrap();
        fs::write(at("one.html"), "<p>one").unwrap();
        fs::write(at("notes.txt"), "no").unwrap();
        fs::write(at(".hidden.html"), "no").unwrap();
        fs::create_dir(at("folder.html")).unwrap();
        std::os::unix::fs::symlink(outside.path(), at("link.html")).unwrap();
        let names: Vec<String> = look(folder.path()).unwrap().into_iter().map(|report| report.name).collect();
        assert_eq!(names, ["one.html"]);
        assert!(
            matches!(read_page(&at("one.html")).unwrap(), FileContent::Page(bytes) if bytes == b"<p>one")
        );
        for no in ["link.html", "folder.html", "gone.html"] {
            assert!(matches!(read_page(&at(no)).unwrap(), FileContent::Nothing), "{no}");
        }
    }

    #[test]
    fn oversized_reports_are_reported_and_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("large.html");
        File::create(&path).unwrap().set_len(REPORT_BYTES_MAX + 1).unwrap();
        assert!(
            matches!(read_page(&path).unwrap(), FileContent::TooLarge(bytes) if bytes == REPORT_BYTES_MAX + 1)
        );
    }
}
