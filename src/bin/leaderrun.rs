fn main() -> std::process::ExitCode {
    leaderrun::cli::leaderrun::main()
}
