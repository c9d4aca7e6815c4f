//! The command `plan`: reads a profile and writes a burst-parallel plan. It runs the same code as `POST
//! /v1/plan/burst`.
//!
//! - [`args`], `help`: flags
//! - `timeline`: busy and idle times of each GPU
//! - `text`, `charts`, `page`: output as text, charts and HTML

pub mod args;

mod help;

mod timeline;

mod text;

mod charts;

mod page;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::Context;
use evenstep_protocol::BurstProfile;

pub use args::Args;

use evenstep_report::output::{self, STANDARD_STREAM, write_page, write_results};

use crate::plan::plan;

/// Maximum size of a profile, in bytes.
const PROFILE_BYTES_MAX: u64 = 256 << 20;

/// Computes the plan and writes the requested outputs. The flags must pass [`Args::check`].
///
/// # Errors
/// The profile is invalid, no plan satisfies the limits, or an output is not writable. In each case no output
/// is written.
pub fn run(args: &Args) -> anyhow::Result<()> {
    output::check(&[&args.json, &args.report])?;
    let request = args.request(read(&args.profile)?);
    let plan = plan(&request)?;
    write_results(&text::table(&plan), &plan, &args.json, &[&args.report])?;
    write_page(&args.report, |asked| page::report(&plan, asked))
}

fn read(path: &Path) -> anyhow::Result<BurstProfile> {
    let name = path.display().to_string();
    let text = if path == Path::new(STANDARD_STREAM) {
        text_of(std::io::stdin().lock())
    } else {
        File::open(path).map_err(anyhow::Error::from).and_then(text_of)
    };
    let text = text.with_context(|| name.clone())?;
    let mut reader = serde_json::Deserializer::from_str(&text);
    let profile = serde_path_to_error::deserialize(&mut reader)
        .map_err(|error| anyhow::anyhow!("{name}: {}: {}", error.path(), error.inner()))?;
    reader.end().with_context(|| name)?;
    Ok(profile)
}

fn text_of(source: impl Read) -> anyhow::Result<String> {
    let mut text = String::new();
    source.take(PROFILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    anyhow::ensure!(text.len() as u64 <= PROFILE_BYTES_MAX, "profile exceeds {PROFILE_BYTES_MAX} bytes");
    Ok(text)
}
