fn main() {
    let arguments: Vec<u64> = std::env::args().skip(1).map(|argument| argument.parse().unwrap()).collect();
    let (from, count) = (arguments[0], arguments[1]);
    let mut failed = 0;
    for seed in from..from + count {
        let result = std::panic::catch_unwind(|| ebb_sim::volume::run(seed));
        match result {
            Ok(Ok(report)) => {
                if count == 1 || report.undecided {
                    println!("{seed}: {report:?}");
                }
            }
            Ok(Err(broken)) => {
                failed += 1;
                if count == 1 {
                    println!("{broken}");
                } else {
                    println!("{seed}: {}", broken.what.chars().take(300).collect::<String>());
                }
            }
            Err(_) => {
                failed += 1;
                println!("{seed}: panic");
            }
        }
    }
    println!("{failed} of {count} failed");
}
