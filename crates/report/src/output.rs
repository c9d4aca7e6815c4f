//! Output of results to standard output and files.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;

use crate::Report;

/// Path that means standard input or output.
pub const STANDARD_STREAM: &str = "-";

/// Checks that the folders of output files exist, before any work is done.
///
/// # Errors
/// If a folder does not exist, or a path is a folder.
pub fn check(outputs: &[&Option<PathBuf>]) -> anyhow::Result<()> {
    for path in outputs.iter().copied().flatten() {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        anyhow::ensure!(
            folder.is_none_or(Path::is_dir),
            "{}: the folder does not exist; create it \
            first",
            path.display()
        );
        anyhow::ensure!(!path.is_dir(), "{}: is a folder; name a file", path.display());
    }
    Ok(())
}

/// Checks that all outputs have different paths, and that none overwrites an input.
///
/// # Errors
/// A message that names the path.
pub fn check_distinct(outputs: &[&Option<PathBuf>], inputs: &[PathBuf]) -> Result<(), String> {
    let outputs: Vec<&PathBuf> = outputs.iter().copied().flatten().collect();
    for (at, path) in outputs.iter().enumerate() {
        if outputs[..at].contains(path) {
            return Err(format!(
                "{}: two outputs have the same path; choose different paths",
                path.display()
            ));
        }
        if *path != Path::new(STANDARD_STREAM) && inputs.contains(path) {
            return Err(format!(
                "{}: the output would overwrite an input; choose another path",
                path.display()
            ));
        }
    }
    Ok(())
}

/// Returns the command line in a form that can be run again.
fn asked() -> String {
    let words =
        std::env::args().skip(1).map(|word| if word.contains(' ') { format!("{word:?}") } else { word });
    std::iter::once("evenstep-predictor".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

/// Writes a table to standard output, unless another output goes there. Also writes the results as JSON if
/// `json` is a path.
///
/// # Errors
/// If an output cannot be written.
pub fn write_results(
    table: &str,
    results: &impl Serialize,
    json: &Option<PathBuf>,
    others: &[&Option<PathBuf>],
) -> anyhow::Result<()> {
    let mut asked_for = others.iter().copied().flatten().chain(json);
    if !asked_for.any(|path| path == Path::new(STANDARD_STREAM)) {
        put(Path::new(STANDARD_STREAM), table.as_bytes())?;
    }
    if let Some(path) = json {
        let mut json = serde_json::to_vec(results)?;
        json.push(b'\n');
        put(path, &json)?;
    }
    Ok(())
}

/// Writes a page if `path` is given. `page` creates it from the command line.
///
/// # Errors
/// If the page cannot be written.
pub fn write_page(path: &Option<PathBuf>, page: impl FnOnce(&str) -> Report) -> anyhow::Result<()> {
    path.as_ref().map_or(Ok(()), |path| put(path, page(&asked()).to_html().as_bytes()))
}

/// Writes text to standard output.
///
/// # Errors
/// If standard output cannot be written.
pub fn write_text(text: &str) -> anyhow::Result<()> {
    put(Path::new(STANDARD_STREAM), text.as_bytes())
}

/// Writes a value to standard output as one line of JSON.
///
/// # Errors
/// If standard output cannot be written.
pub fn write_json(value: &impl Serialize) -> anyhow::Result<()> {
    write_text(&format!("{}\n", serde_json::to_string(value)?))
}

/// Writes to a file, or to standard output for `-`.
///
/// # Errors
/// If the file or standard output cannot be written.
pub fn put(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    if path != Path::new(STANDARD_STREAM) {
        return std::fs::write(path, bytes).with_context(|| path.display().to_string());
    }
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        // The reader closed the pipe early, as `head` does.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("standard output"),
    }
}
