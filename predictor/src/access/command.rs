//! `evenstep-predictor token`: creates, lists and revokes tokens in the store and shows who changed what, also while a
//! predictor serves it.

use std::time::Duration;

use anyhow::Context;
use clap::Subcommand;
use evenstep_report::output::write_text;
use evenstep_store::Address;
use evenstep_store::access::{
    AccessChange, AccessStore, AuditEntry, StoredAuditEntry, StoredToken, TOKENS_MAX,
};
use jiff::Timestamp;
use rand::CryptoRng;
use serde_json::json;

use super::options::TokenOptions;
use super::pattern::JobPattern;
use super::scope::Scope;
use crate::amount::keep_time;

/// Entries of the audit log that are shown.
const AUDIT_ENTRIES: u32 = 1_000;

/// Create, list and revoke the tokens of clients, and show who changed what
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
    /// Store address: sqlite://FILE or postgres://USER@HOST/DATABASE
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "EVENSTEP_STORE",
        default_value = "sqlite://evenstep.db",
        global = true
    )]
    store: String,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create a token and print it; it cannot be shown again
    Create(CreateArgs),
    /// List all tokens with their latest use
    List {
        /// Print the list as JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete a token; predictors reject it within a few seconds
    Revoke {
        /// The token's ID, as listed
        token_id: String,
    },
    /// Show the newest 1,000 entries of the audit log, the newest first: who created, deleted or overrode what
    Audit,
}

#[derive(Debug, clap::Args)]
struct CreateArgs {
    /// Scope: agent (send telemetry), trainer (train), viewer (read), operator (read, override, delete),
    /// metrics (scrape), admin (everything)
    #[arg(long)]
    scope: Scope,
    /// Jobs for which it allows that: *, a job ID, or the beginning of job IDs and *, such as team-a/*
    #[arg(long, value_name = "PATTERN", default_value = "*")]
    jobs: JobPattern,
    /// Time until it expires, such as 12h or 90d [default: never]
    #[arg(long, value_name = "TIME", value_parser = keep_time)]
    expires: Option<Duration>,
    /// Name of its user, for the list
    #[arg(long, default_value = "")]
    note: String,
}

/// Runs the command at a time, in milliseconds since 1970.
///
/// # Errors
/// If an argument or the store cannot be used.
pub fn run(args: &Args, now_unix_ms: i64, random: &mut impl CryptoRng) -> anyhow::Result<()> {
    let address: Address = args.store.parse()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // Checked before the store is created.
        let options = match &args.command {
            Command::Create(create) => Some(create.options().map_err(anyhow::Error::msg)?),
            _ => None,
        };
        let opened = AccessStore::open(&address).await;
        let mut store = opened.with_context(|| format!("store {address}"))?;
        let done = match (&args.command, &options) {
            (Command::Create(_), Some(options)) => create(&mut store, options, now_unix_ms, random).await,
            (Command::Revoke { token_id }, _) => revoke(&mut store, token_id, now_unix_ms).await,
            (Command::List { json }, _) => list(&mut store, *json, now_unix_ms).await,
            (Command::Audit, _) => write_text(&audit_table(&store.audit(AUDIT_ENTRIES).await?)),
            (Command::Create(_), None) => Ok(()),
        };
        store.close().await;
        done.with_context(|| format!("store {address}"))
    })
}

impl CreateArgs {
    fn options(&self) -> Result<TokenOptions, String> {
        let expires_s = self.expires.map(|time| time.as_secs());
        TokenOptions::new(self.scope, self.jobs.clone(), expires_s, self.note.clone())
    }
}

async fn create(
    store: &mut AccessStore,
    options: &TokenOptions,
    now_unix_ms: i64,
    random: &mut impl CryptoRng,
) -> anyhow::Result<()> {
    if store.tokens().await?.len() >= TOKENS_MAX {
        anyhow::bail!("{TOKENS_MAX} tokens exist, the limit; revoke one");
    }
    let (token, stored) = options.create(now_unix_ms, random);
    let changes = [
        AccessChange::Create(stored),
        AccessChange::Audit(audit("token.create", options.subject(token.id()))),
    ];
    store.write(&changes, now_unix_ms).await?;
    // The command can be used as in TOKEN=$(evenstep-predictor token create ..).
    write_text(&format!("{}\n", token.reveal()))
}

async fn revoke(store: &mut AccessStore, token_id: &str, now_unix_ms: i64) -> anyhow::Result<()> {
    if !store.tokens().await?.iter().any(|token| token.token_id == token_id) {
        anyhow::bail!("token {token_id:?} does not exist; evenstep-predictor token list lists all tokens");
    }
    let revoke = AccessChange::Revoke { token_id: token_id.to_owned() };
    let changes = [revoke, AccessChange::Audit(audit("token.revoke", token_id.to_owned()))];
    store.write(&changes, now_unix_ms).await?;
    write_text(&format!("revoked {token_id}\n"))
}

async fn list(store: &mut AccessStore, json: bool, now_unix_ms: i64) -> anyhow::Result<()> {
    let tokens = store.tokens().await?;
    if json {
        let list = json!({ "tokens": tokens.iter().map(view).collect::<Vec<_>>() });
        return write_text(&format!("{list:#}\n"));
    }
    write_text(&table(&tokens, now_unix_ms))
}

fn audit(action: &str, subject: String) -> AuditEntry {
    let actor = format!("command of uid {}", rustix::process::getuid().as_raw());
    AuditEntry { actor, address: None, action: action.to_owned(), subject }
}

/// A token without its secret. Times are in milliseconds since 1970.
fn view(token: &StoredToken) -> serde_json::Value {
    json!({
        "token_id": token.token_id,
        "scope": token.scope,
        "jobs": token.jobs,
        "note": token.note,
        "created_unix_ms": token.created_unix_ms,
        "expires_unix_ms": token.expires_unix_ms,
        "last_used_unix_ms": token.last_used_unix_ms,
    })
}

/// Entries of the audit log as a table, with times in UTC.
fn audit_table(entries: &[StoredAuditEntry]) -> String {
    let head = ["TIME", "ACTOR", "ADDRESS", "ACTION", "SUBJECT"].map(str::to_owned);
    let line = |StoredAuditEntry { at_unix_ms, entry }: &StoredAuditEntry| {
        let time = Timestamp::from_millisecond(*at_unix_ms)
            .map_or_else(|_| at_unix_ms.to_string(), |at| at.to_string());
        let address = entry.address.clone().unwrap_or_default();
        [time, entry.actor.clone(), address, entry.action.clone(), entry.subject.clone()]
    };
    aligned(std::iter::once(head).chain(entries.iter().map(line)).collect())
}

/// The list of tokens as a table.
fn table(tokens: &[StoredToken], now_unix_ms: i64) -> String {
    let head = ["ID", "SCOPE", "JOBS", "CREATED", "LAST USED", "EXPIRES", "NOTE"].map(str::to_owned);
    let ago = |at: i64| format!("{} ago", duration(now_unix_ms.saturating_sub(at)));
    let line = |token: &StoredToken| {
        let expires = match token.expires_unix_ms {
            None => "never".to_owned(),
            Some(at) if at <= now_unix_ms => "expired".to_owned(),
            Some(at) => format!("in {}", duration(at.saturating_sub(now_unix_ms))),
        };
        let used = token.last_used_unix_ms.map_or_else(|| "never".to_owned(), ago);
        let (id, scope, jobs) = (token.token_id.clone(), token.scope.clone(), token.jobs.clone());
        [id, scope, jobs, ago(token.created_unix_ms), used, expires, token.note.clone()]
    };
    aligned(std::iter::once(head).chain(tokens.iter().map(line)).collect())
}

/// A table with aligned columns.
fn aligned<const COLUMNS: usize>(rows: Vec<[String; COLUMNS]>) -> String {
    let mut widths = [0; COLUMNS];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// A duration in its largest unit: `90 s`, `3 h`, `12 d`.
fn duration(milliseconds: i64) -> String {
    let seconds = milliseconds.max(0) / 1000;
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_aligned_columns() {
        let token = |id: &str, jobs: &str, expires_unix_ms, last_used_unix_ms| StoredToken {
            token_id: id.to_owned(),
            secret_sha256: vec![0; 32],
            scope: "viewer".to_owned(),
            jobs: jobs.to_owned(),
            note: "wall display".to_owned(),
            created_unix_ms: 0,
            expires_unix_ms,
            last_used_unix_ms,
        };
        let now = 3 * 86_400_000;
        let tokens = [token("0a", "*", None, None), token("0b", "team-a/*", Some(now + 1), Some(now - 5000))];
        let lines = [
            "ID  SCOPE   JOBS      CREATED  LAST USED  EXPIRES  NOTE",
            "0a  viewer  *         3 d ago  never      never    wall display",
            "0b  viewer  team-a/*  3 d ago  5 s ago    in 0 s   wall display",
        ];
        assert_eq!(table(&tokens, now), format!("{}\n", lines.join("\n")));
        assert!(table(&[token("0a", "*", Some(now), None)], now).contains("expired"));
    }
}
