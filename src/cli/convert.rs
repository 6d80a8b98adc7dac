//! `ropewalk convert`: the program `convert` by a name that no other program has.

use std::ffi::OsString;

use clap::{value_parser, Arg};

use super::{Command, Ended};

pub(crate) const COMMAND: Command = Command {
    name: "convert",
    about: "Write a rope method, an adapter or another type into a file, or import a folder of Hugging Face",
    details: "The program `convert`, whose name other software has, too: the same options, results and exit codes. \
              `ropewalk convert --help` lists them.",
    example: "convert model.gguf --rope harpe --ctx 16384 -o long.gguf",
    args: |command| {
        command.disable_help_flag(true).arg(
            Arg::new("args")
                .value_name("ARGS")
                .help("What `convert` takes")
                .num_args(0..)
                .trailing_var_arg(true)
                .allow_hyphen_values(true)
                .value_parser(value_parser!(OsString)),
        )
    },
    run: |matches| {
        let given = matches.get_many::<OsString>("args").into_iter().flatten().cloned();
        // It has said what there was to say.
        Err(Ended(convert::cli::run_apart(std::iter::once("convert".into()).chain(given))).into())
    },
};
