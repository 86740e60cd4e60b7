//! `huntgroup completions`: commands and flags for the shell's tab key.

use std::io::{self, Write};

use clap::{Args, CommandFactory as _, ValueEnum};
use clap_complete::{Shell, generate};

use super::Cli;

/// Flags of `huntgroup completions`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  huntgroup completions bash > /etc/bash_completion.d/huntgroup
  huntgroup completions zsh > ~/.zfunc/_huntgroup
  huntgroup completions fish > ~/.config/fish/completions/huntgroup.fish
  huntgroup completions powershell >> $PROFILE

It is in force in shells that start afterwards. zsh looks in ~/.zfunc if ~/.zshrc has
`fpath+=~/.zfunc` before `compinit`.")]
pub struct CompletionsArgs {
    /// The shell
    shell: Known,
}

/// Shells that people have.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Known {
    Bash,
    Zsh,
    Fish,
    Powershell,
}

impl From<Known> for Shell {
    fn from(shell: Known) -> Self {
        match shell {
            Known::Bash => Self::Bash,
            Known::Zsh => Self::Zsh,
            Known::Fish => Self::Fish,
            Known::Powershell => Self::PowerShell,
        }
    }
}

/// Writes the script.
///
/// # Errors
/// The output can't be written.
pub fn run(args: &CompletionsArgs, out: &mut dyn Write) -> io::Result<()> {
    let mut script = Vec::new();
    // Into memory first: the generator panics where it can't write, and `| head` is no bug.
    generate(Shell::from(args.shell), &mut Cli::command(), "huntgroup", &mut script);
    out.write_all(&script)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_is_told_every_command() {
        for shell in Known::value_variants() {
            let mut out = Vec::new();
            run(&CompletionsArgs { shell: *shell }, &mut out).unwrap();
            let script = String::from_utf8(out).unwrap();
            for command in Cli::command().get_subcommands() {
                assert!(script.contains(command.get_name()), "{shell:?} {}", command.get_name());
            }
            assert!(script.contains("undrain") && script.contains("--once") || script.contains("-l once"), "{shell:?}");
        }
    }
}
