//! `ropewalk completions`: completion scripts for shells, and man pages, made from the same definitions as the help.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args as _, FromArgMatches};
use clap_complete::Shell;
use files::Kind;

use super::{app, output, Command};

pub(crate) const COMMAND: Command = Command {
    name: "completions",
    about: "Print a shell completion script",
    details: "The script goes to stdout; put it where your shell looks for completions, or load it from \
              your shell's start file. `make install` writes the scripts of bash, zsh and fish, and man pages, with --install.",
    example: "completions bash",
    args: Args::augment_args,
    run: |m| run(&Args::from_arg_matches(m)?),
};

#[derive(Debug, clap::Args)]
struct Args {
    /// The shell to write for
    #[arg(required_unless_present = "install")]
    shell: Option<Shell>,
    /// Write man pages and the scripts of bash, zsh and fish below this folder, such as ~/.local/share
    #[arg(long, value_name = "DIR", conflicts_with = "shell")]
    install: Option<PathBuf>,
}

/// Where shells look for completions below a folder of shared data.
const SCRIPTS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions/ropewalk"),
    (Shell::Zsh, "zsh/site-functions/_ropewalk"),
    (Shell::Fish, "fish/vendor_completions.d/ropewalk.fish"),
];

fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(shell) = args.shell {
        output::print(&String::from_utf8(script(shell))?)?;
    }
    let Some(dir) = &args.install else { return Ok(()) };
    for (shell, path) in SCRIPTS {
        write(&dir.join(path), &script(shell))?;
    }
    let pages = dir.join("man/man1");
    let mut app = app();
    app.build();
    for command in std::iter::once(&app).chain(app.get_subcommands().filter(|c| !c.is_hide_set())) {
        let man = clap_mangen::Man::new(command.clone());
        let mut page = Vec::new();
        man.render(&mut page)?;
        write(&pages.join(man.get_filename()), &page)?;
    }
    output::print(&format!("{}\n", dir.display()))
}

/// A completion script. clap_complete panics on a failed write, so it writes to memory.
fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut app(), "ropewalk", &mut script);
    script
}

fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let shown = || path.display().to_string();
    std::fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).with_context(shown)?;
    // Whatever has the name is replaced, and no link is followed.
    let kind = Kind::new("a file to install", |_| true);
    Ok(files::replace(path, &kind, |out| out.write_all(bytes).map_err(|e| files::Error::new(path, e)))?)
}
