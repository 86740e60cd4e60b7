//! `huntgroup keys`: tenants' API keys of a running gateway.

use std::io::Write;

use clap::{Args, Subcommand};
use scheduler::Class;
use serde_json::{Map, Value, json};

use super::{
    client::{AdminClient, CliError, Common},
    table::{Align, Table, cell, names, print_json},
};
use crate::config::Moment;

/// Flags of `huntgroup keys`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  huntgroup keys create --tenant backend                     shown once, on standard output
  huntgroup keys create --tenant guard --models qwen3.5-0.8b --rpm 600 > guard.key
  huntgroup keys list --tenant backend
  huntgroup keys revoke 3")]
pub struct KeysArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: KeysCommand,
}

/// What can be done with keys.
#[derive(Clone, Debug, Subcommand)]
pub enum KeysCommand {
    /// Make a key for a tenant; it is shown once
    Create(CreateArgs),
    /// List the keys that were made
    List(ListArgs),
    /// End a key, at once
    Revoke(RevokeArgs),
}

/// Flags of `keys create`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  huntgroup keys create --tenant backend
  huntgroup keys create --tenant guard --models qwen3.5-0.8b,laya --rpm 600 > guard.key
  huntgroup keys create --tenant nightly --class batch --max-class batch --max-in-flight 20

The key alone goes to standard output, the remark about it to standard error.")]
pub struct CreateArgs {
    /// Whose key: a tenant of the configuration, or a new name
    #[arg(long, value_name = "NAME")]
    pub tenant: String,
    /// Models it may use [default: those of its tenant]
    #[arg(long, value_name = "MODEL", value_delimiter = ',')]
    pub models: Vec<String>,
    /// Requests a minute [default: its tenant's]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub rpm: Option<u32>,
    /// Tokens a minute [default: its tenant's]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub tpm: Option<u32>,
    /// Requests running or waiting at once [default: its tenant's]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_in_flight: Option<u32>,
    /// Requests waiting at once [default: its tenant's]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_queued: Option<u32>,
    /// How urgent its requests are that do not say: interactive, standard or batch [default: its tenant's]
    #[arg(long, value_name = "CLASS", value_parser = class)]
    pub class: Option<&'static str>,
    /// The most urgent class it may ask for [default: its tenant's]
    #[arg(long, value_name = "CLASS", value_parser = class)]
    pub max_class: Option<&'static str>,
    /// The gateway, and how to print.
    #[command(flatten)]
    pub common: Common,
}

/// Flags of `keys list`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  huntgroup keys list
  huntgroup keys list --tenant backend --all
  huntgroup keys list --json

Keys that stand in the configuration are not listed. A - means: as its tenant.")]
pub struct ListArgs {
    /// Only this tenant's
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
    /// Revoked ones too
    #[arg(long)]
    pub all: bool,
    /// The gateway, and how to print.
    #[command(flatten)]
    pub common: Common,
}

/// Flags of `keys revoke`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  huntgroup keys revoke 3

Requests that run already are finished.")]
pub struct RevokeArgs {
    /// The key's number, as `keys list` shows it
    pub id: u32,
    /// The gateway, and how to print.
    #[command(flatten)]
    pub common: Common,
}

/// A class by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be interactive, standard or batch")]
struct NoClass;

fn class(name: &str) -> Result<&'static str, NoClass> {
    Class::ALL.into_iter().map(Class::name).find(|known| *known == name).ok_or(NoClass)
}

/// Runs a command. Results go to `out`, remarks to `err`.
///
/// # Errors
/// The gateway can't be reached, or refuses.
pub async fn run(args: KeysArgs, out: &mut dyn Write, err: &mut dyn Write) -> Result<(), CliError> {
    match args.command {
        KeysCommand::Create(args) => create(&AdminClient::from_args(&args.common.admin)?, &args, out, err).await,
        KeysCommand::List(args) => list(&AdminClient::from_args(&args.common.admin)?, &args, out).await,
        KeysCommand::Revoke(args) => revoke(&AdminClient::from_args(&args.common.admin)?, &args, out).await,
    }
}

async fn create(
    client: &AdminClient,
    args: &CreateArgs,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<(), CliError> {
    let mut body = Map::new();
    body.insert("tenant".into(), json!(args.tenant));
    body.insert("models".into(), json!(args.models));
    let stated = [
        ("requests_per_minute", args.rpm.map(Value::from)),
        ("tokens_per_minute", args.tpm.map(Value::from)),
        ("max_in_flight", args.max_in_flight.map(Value::from)),
        ("max_queued", args.max_queued.map(Value::from)),
        ("class", args.class.map(Value::from)),
        ("max_class", args.max_class.map(Value::from)),
    ];
    body.extend(stated.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    let made = client.post("/admin/keys", &Value::Object(body)).await?;
    if args.common.json {
        return Ok(print_json(out, &made)?);
    }
    // The key alone goes to the output, so that it can be piped into a file or a secret store.
    writeln!(out, "{}", cell(&made, "key"))?;
    let (id, tenant) = (cell(&made, "id"), cell(&made, "tenant"));
    writeln!(err, "This is key {id} of tenant {tenant}. Keep it: it is not kept here and not shown again.")?;
    Ok(())
}

async fn list(client: &AdminClient, args: &ListArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let answer = client.get("/admin/keys").await?;
    let all = answer["data"].as_array().cloned().unwrap_or_default();
    let wanted = |key: &Value| {
        let live = args.all || key["revoked_at"].is_null();
        live && args.tenant.as_ref().is_none_or(|tenant| key["tenant"].as_str() == Some(tenant))
    };
    let keys: Vec<Value> = all.into_iter().filter(wanted).collect();
    if args.common.json {
        return Ok(print_json(out, &json!({ "object": "list", "data": keys }))?);
    }
    let mut table = Table::new(&[
        ("ID", Align::Right),
        ("TENANT", Align::Left),
        ("KEY", Align::Left),
        ("REQ/MIN", Align::Right),
        ("TOK/MIN", Align::Right),
        ("AT ONCE", Align::Right),
        ("CLASS", Align::Left),
        ("MODELS", Align::Left),
        ("CREATED", Align::Left),
        ("REVOKED", Align::Left),
    ]);
    for key in &keys {
        table.row([
            cell(key, "id"),
            cell(key, "tenant"),
            format!("{}…", cell(key, "prefix")),
            cell(key, "requests_per_minute"),
            cell(key, "tokens_per_minute"),
            cell(key, "max_in_flight"),
            cell(key, "class"),
            names(&key["models"]),
            moment(key, "created_at"),
            moment(key, "revoked_at"),
        ]);
    }
    if table.is_empty() {
        let filtered = args.tenant.is_some() && answer["data"].as_array().is_some_and(|all| !all.is_empty());
        let what = if filtered { "No such key" } else { "No keys but those of the configuration" };
        writeln!(out, "{what}. Make one: huntgroup keys create --tenant NAME")?;
        return Ok(());
    }
    Ok(table.write(out)?)
}

async fn revoke(client: &AdminClient, args: &RevokeArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let ended = client.delete(&format!("/admin/keys/{}", args.id)).await?;
    if args.common.json {
        return Ok(print_json(out, &ended)?);
    }
    writeln!(out, "Key {} is revoked.", args.id)?;
    Ok(())
}

fn moment(object: &Value, field: &str) -> String {
    let moment = object[field].as_u64().and_then(Moment::from_unix_seconds);
    moment.map_or_else(|| "-".into(), |moment| moment.to_string())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::{super::client::tests::OneAnswer, *};

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        keys: KeysArgs,
    }

    fn parse(words: &[&str]) -> Result<KeysCommand, clap::Error> {
        Command::try_parse_from([&["keys"], words].concat()).map(|command| command.keys.command)
    }

    const MADE: &str = r#"{"id":3,"key":"hg-abc","tenant":"bank","prefix":"hg-abcd"}"#;

    #[tokio::test]
    async fn a_new_key_alone_goes_to_the_output_and_the_remark_beside_it() {
        let gateway = OneAnswer::new(&[("201 Created", MADE)]);
        let KeysCommand::Create(args) =
            parse(&["create", "--tenant", "bank", "--models", "a,b", "--rpm", "60", "--class", "batch"]).unwrap()
        else {
            panic!("create")
        };
        let (mut out, mut err) = (Vec::new(), Vec::new());
        create(&gateway.client, &args, &mut out, &mut err).await.unwrap();
        assert_eq!(out, b"hg-abc\n");
        assert!(String::from_utf8(err).unwrap().starts_with("This is key 3 of tenant bank."));
        let asked = gateway.asked().remove(0);
        let body: Value = serde_json::from_str(asked.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        assert_eq!(body, json!({"tenant":"bank","models":["a","b"],"requests_per_minute":60,"class":"batch"}));
    }

    #[tokio::test]
    async fn keys_are_listed_as_a_table_without_revoked_ones_unless_asked() {
        let keys = json!({"object":"list","data":[
            {"id":3,"tenant":"bank","prefix":"hg-abcd","created_at":1_795_996_149,"revoked_at":null,
             "requests_per_minute":60,"models":["a","b"],"class":null},
            {"id":12,"tenant":"guard","prefix":"hg-efgh","created_at":0,"revoked_at":60,"models":[]},
        ]})
        .to_string();
        let gateway = OneAnswer::new(&[("200 OK", &keys), ("200 OK", &keys), ("200 OK", &keys)]);
        let listed = async |words: &[&str]| {
            let KeysCommand::List(args) = parse(words).unwrap() else { panic!("list") };
            let mut out = Vec::new();
            list(&gateway.client, &args, &mut out).await.unwrap();
            String::from_utf8(out).unwrap()
        };
        let expected = "\
ID  TENANT  KEY       REQ/MIN  TOK/MIN  AT ONCE  CLASS  MODELS  CREATED               REVOKED
 3  bank    hg-abcd…       60        -        -  -      a,b     2026-11-29T23:49:09Z  -
";
        assert_eq!(listed(&["list"]).await, expected);
        assert!(listed(&["list", "--all", "--tenant", "guard"]).await.lines().nth(1).unwrap().starts_with("12  guard"));
        let json: Value = serde_json::from_str(&listed(&["list", "--json"]).await).unwrap();
        assert_eq!(json["data"].as_array().unwrap().len(), 1);
        gateway.asked();
    }

    #[tokio::test]
    async fn a_refused_revocation_is_the_gateways_own_words() {
        let refusal = r#"{"error":{"message":"no key 7","type":"invalid_request_error","param":null,"code":null}}"#;
        let gateway = OneAnswer::new(&[("200 OK", "{}"), ("404 Not Found", refusal)]);
        let KeysCommand::Revoke(args) = parse(&["revoke", "7"]).unwrap() else { panic!("revoke") };
        let mut out = Vec::new();
        revoke(&gateway.client, &args, &mut out).await.unwrap();
        assert_eq!(out, b"Key 7 is revoked.\n");
        let error = revoke(&gateway.client, &args, &mut out).await.unwrap_err();
        assert_eq!((error.to_string().as_str(), error.exit_code()), ("no key 7", 1));
        assert!(gateway.asked()[0].starts_with("DELETE /admin/keys/7 "));
    }

    #[test]
    fn wrong_flags_are_refused_before_anything_is_sent() {
        for words in [
            &["create"][..],
            &["create", "--tenant", "a", "--rpm", "0"],
            &["create", "--tenant", "a", "--class", "urgent"],
            &["revoke"],
            &["revoke", "key-3"],
            &["revoke", "-1"],
        ] {
            assert!(parse(words).is_err(), "{words:?}");
        }
    }
}
