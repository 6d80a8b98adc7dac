//! Writes the seeds of every target into `FOLDER/NAME/`, where fuzzers look for inputs, and prints the names.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let folder = std::env::args_os().nth(1).ok_or_else(|| std::io::Error::other("usage: seeds FOLDER"))?;
    for target in fuzz::TARGETS {
        let folder = Path::new(&folder).join(target.name);
        std::fs::create_dir_all(&folder)?;
        for (i, seed) in (target.seeds)().into_iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{i}")), seed)?;
        }
        println!("{}", target.name);
    }
    Ok(())
}
