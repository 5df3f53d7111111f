# What a user who may not write the directory can try. It says what came of it, a line each, and stays.
use strict;
use Socket;
use Fcntl;
$| = 1;
my ($act, @on) = @ARGV;
my @kept;

# A read lock on the whole of a file (fcntl(2)).
sub read_lock {
    my ($file, $wait) = @_;
    my $lock = pack("s s x4 q q l x4", F_RDLCK, 0, 0, 0, 0);
    return fcntl($file, $wait ? F_SETLKW : F_SETLK, $lock);
}

sub stream {
    socket(my $socket, AF_UNIX, SOCK_STREAM | 04000, 0) or die "socket: $!";
    push @kept, $socket;
    return $socket;
}

# Connects until the kernel says that there is no more room.
sub fill {
    my ($name) = @_;
    while (connect(stream(), pack_sockaddr_un("\0$name"))) { }
    print $!{EAGAIN} ? "full\n" : "refused: $!\n";
}

if ($act eq "lock") {
    for my $path (@on) {
        my $opened = open(my $file, "<", $path);
        print $opened && read_lock($file, 0) ? "locked\n" : "refused: $!\n";
        push @kept, $file;
    }
} elsif ($act eq "open") {
    # And locks it as soon as that can be had.
    open(my $file, "<", $on[0]) or die "$on[0]: $!";
    print "open\n";
    <STDIN>;
    print "waits\n";
    read_lock($file, 1) or die "lock: $!";
    print "locked\n";
    push @kept, $file;
} elsif ($act eq "squat") {
    for my $name (@on) {
        my $socket = stream();
        my $bound = bind($socket, pack_sockaddr_un("\0$name")) && listen($socket, 0);
        if ($bound) { fill($name) } else { print "refused: $!\n" }
    }
} elsif ($act eq "flood") {
    fill($_) for @on;
}
<STDIN>;
<STDIN>;
