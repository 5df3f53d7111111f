fn main() -> std::process::ExitCode {
    leaderrun::internals::cli::leaderrun::main()
}
