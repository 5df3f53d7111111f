fn main() -> std::process::ExitCode {
    leaderrun::cli::leaderctl::main()
}
