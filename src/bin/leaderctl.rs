fn main() -> std::process::ExitCode {
    leaderrun::internals::cli::leaderctl::main()
}
