//! Where results go: standard output, files.

use std::io::{ErrorKind, Write};
use std::path::Path;

use anyhow::Context;

use super::args::Args;
use super::results::Results;
use super::table::STANDARD;
use super::{forecasts, page, text};

/// Checks before any work that files can be where they should be.
///
/// # Errors
/// Where a folder is not there.
pub fn check(args: &Args) -> anyhow::Result<()> {
    for path in [&args.json, &args.csv, &args.report].into_iter().flatten() {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        anyhow::ensure!(folder.is_none_or(Path::is_dir), "{}: its folder is not there", path.display());
        anyhow::ensure!(!path.is_dir(), "{}: a folder is there already", path.display());
    }
    Ok(())
}

/// Writes what was asked for; the table goes to standard output where nothing else does.
///
/// # Errors
/// Where something cannot be written.
pub fn write(results: &Results, args: &Args) -> anyhow::Result<()> {
    let outputs = [&args.json, &args.csv, &args.report];
    if !outputs.into_iter().flatten().any(|path| path == Path::new(STANDARD)) {
        put(Path::new(STANDARD), text::table(results).as_bytes())?;
    }
    if let Some(path) = &args.json {
        let mut json = serde_json::to_vec(results)?;
        json.push(b'\n');
        put(path, &json)?;
    }
    if let Some(path) = &args.csv {
        put(path, &forecasts::csv(results)?)?;
    }
    if let Some(path) = &args.report {
        put(path, page::report(results, &asked()).to_html().as_bytes())?;
    }
    Ok(())
}

/// The command line, as a reader of the page could give it again.
fn asked() -> String {
    let words =
        std::env::args().skip(1).map(|word| if word.contains(' ') { format!("{word:?}") } else { word });
    std::iter::once("evenstep-predictor".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

fn put(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    if path != Path::new(STANDARD) {
        return std::fs::write(path, bytes).with_context(|| path.display().to_string());
    }
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        // Whoever reads has read enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("standard output"),
    }
}
