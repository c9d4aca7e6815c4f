//! Rejected input: exit status 1 for data, 2 for the command line, and no output.

use crate::support::{Folder, own_trace};

#[test]
fn bad_cells_are_named_by_line_column_value_and_rule() {
    let row = |cells: &str| {
        format!("t_start,batch,speed,load\n0,8,10,1\n\n1,8,11,2\n{cells}\n3,8,12,3\n4,8,13,3\n")
    };
    let refused = |cells: &str, named: &str| {
        let folder = Folder::with(&row(cells));
        folder.refuses(1, "--trace t.csv", &format!("t.csv:5: {named}"));
    };
    refused("2,8,abc,1", "column \"speed\": \"abc\" is not a number");
    refused("2,8,,1", "column \"speed\": \"\" is missing");
    refused("2,8,NaN,1", "column \"speed\": \"NaN\" is missing");
    refused("2,8,0,1", "column \"speed\": \"0\" is not positive");
    refused("2,8,-3,1", "column \"speed\": \"-3\" is not positive");
    refused("2,8,inf,1", "column \"speed\": \"inf\" is not finite");
    refused("2,8,10,low", "column \"load\": \"low\" is not a number");
    refused("2,0,10,1", "column \"batch\": \"0\" is not a number of samples");
    refused("2,8.5,10,1", "column \"batch\": \"8.5\" is not a number of samples");
    refused("0.5,8,10,1", "column \"t_start\": \"0.5\" is earlier than the row above");
    refused("2,8,10", "3 cells, but the first line has 4");
    refused("2,8,10,1,9", "5 cells, but the first line has 4");
    Folder::with(&row("2,8,10,")).prints("--trace t.csv --models last");
}

#[test]
fn invalid_tables_are_rejected() {
    let folder = Folder::with(&own_trace(30, 1));
    folder.write("empty.csv", "");
    folder.write("header.csv", "speed,load\n");
    folder.write("short.csv", "speed\n1\n2\n3\n");
    folder.write("ids.csv", "speed,w\n1,a\n2,\n");
    // Each cause is printed once.
    folder.refuses(1, "--trace nowhere.csv", "error: nowhere.csv: No such file or directory (os error 2)\n");
    folder.refuses(1, "--trace .", ".: ");
    folder.refuses(1, "--trace empty.csv", "empty.csv: the table is empty");
    folder.refuses(1, "--trace header.csv", "header.csv: the table has no rows");
    folder.refuses(1, "--trace short.csv --warmup 0.9", "3 rows, of which 2 are warm-up");
    folder.refuses(1, "--trace t.csv short.csv --time= --warmup 0.2", "short.csv: short: 3 rows");
    folder.refuses(1, "--trace ids.csv --id w", "ids.csv:3: column \"w\"");
    folder.refuses(1, "--trace t.csv --target sped", "no column \"sped\"; the columns are t_start, iter");
    folder.refuses(1, "--trace t.csv --drivers load,lode", "\"lode\"");
    folder.refuses(1, "--trace t.csv --id worker", "\"worker\"");
    folder.refuses(1, "--trace t.csv --batch size", "\"size\"");
    folder.refuses(1, "--trace t.csv --json no/such/place.json", "no/such/place.json");
}

#[test]
fn invalid_flags_are_rejected() {
    let folder = Folder::with(&own_trace(30, 1));
    folder.refuses(2, "", "--trace");
    folder.refuses(2, "--trace t.csv --models last,gru", "no model \"gru\"; the models are last, ma_N");
    folder.refuses(2, "--trace t.csv --models ema_0", "ema_0");
    folder.refuses(2, "--trace t.csv --models ema_1.5", "ema_1.5");
    folder.refuses(2, "--trace t.csv --models ma_0", "ma_0");
    folder.refuses(2, "--trace t.csv --models last,last", "twice");
    folder.refuses(2, "--trace t.csv --warmup 1.5", "between 0 and 1");
    folder.refuses(2, "--trace t.csv --json - --csv -", "two outputs");
    folder.refuses(2, "--trace t.csv --json t.csv", "overwrite");
    folder.refuses(2, "--trace t.csv --trace t.csv", "twice");
    folder.refuses(2, "--trace t.csv --job a", "--job");
}
