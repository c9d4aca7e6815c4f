//! Where results go: standard output, files.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;

use crate::Report;

/// Stands for standard input or output in a path.
pub const STANDARD: &str = "-";

/// Checks before any work that the folders of output files exist.
///
/// # Errors
/// A folder does not exist, or a path names a folder.
pub fn check(outputs: &[&Option<PathBuf>]) -> anyhow::Result<()> {
    for path in outputs.iter().copied().flatten() {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        anyhow::ensure!(folder.is_none_or(Path::is_dir), "{}: its folder is not there", path.display());
        anyhow::ensure!(!path.is_dir(), "{}: a folder is there already", path.display());
    }
    Ok(())
}

/// Checks that no output goes where another does, or over one of the inputs.
///
/// # Errors
/// Names the path.
pub fn check_apart(outputs: &[&Option<PathBuf>], inputs: &[PathBuf]) -> Result<(), String> {
    let outputs: Vec<&PathBuf> = outputs.iter().copied().flatten().collect();
    for (at, path) in outputs.iter().enumerate() {
        if outputs[..at].contains(path) {
            return Err(format!("{}: two outputs cannot go to one place", path.display()));
        }
        if *path != Path::new(STANDARD) && inputs.contains(path) {
            return Err(format!("{}: the output would overwrite an input", path.display()));
        }
    }
    Ok(())
}

/// The command line, as a reader of the page could give it again.
fn asked() -> String {
    let words =
        std::env::args().skip(1).map(|word| if word.contains(' ') { format!("{word:?}") } else { word });
    std::iter::once("evenstep-predictor".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

/// Writes a table to standard output, where none of the other outputs goes, and the results as JSON where that is wanted.
///
/// # Errors
/// Where something cannot be written.
pub fn put_figures(
    table: &str,
    results: &impl Serialize,
    json: &Option<PathBuf>,
    others: &[&Option<PathBuf>],
) -> anyhow::Result<()> {
    let mut asked_for = others.iter().copied().flatten().chain(json);
    if !asked_for.any(|path| path == Path::new(STANDARD)) {
        put(Path::new(STANDARD), table.as_bytes())?;
    }
    if let Some(path) = json {
        let mut json = serde_json::to_vec(results)?;
        json.push(b'\n');
        put(path, &json)?;
    }
    Ok(())
}

/// Writes a page, if a path is given for it. `page` makes it from the command line.
///
/// # Errors
/// It cannot be written.
pub fn put_page(path: &Option<PathBuf>, page: impl FnOnce(&str) -> Report) -> anyhow::Result<()> {
    path.as_ref().map_or(Ok(()), |path| put(path, page(&asked()).to_html().as_bytes()))
}

/// Writes text to standard output.
///
/// # Errors
/// Where it cannot be written.
pub fn put_text(text: &str) -> anyhow::Result<()> {
    put(Path::new(STANDARD), text.as_bytes())
}

/// Writes a value to standard output, as a line of JSON.
///
/// # Errors
/// Where it cannot be written.
pub fn put_value(value: &impl Serialize) -> anyhow::Result<()> {
    put_text(&format!("{}\n", serde_json::to_string(value)?))
}

/// Writes to a file, or to standard output for `-`.
///
/// # Errors
/// Where it cannot be written.
pub fn put(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
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
