//! Writes the seeds of every target into the folder that is named.

fn main() {
    let folder = std::env::args_os().nth(1).expect("usage: seeds FOLDER");
    if let Err(error) = nervix_fuzz::seeds::write(folder.as_ref()) {
        panic!("{}: {error}", folder.display());
    }
}
