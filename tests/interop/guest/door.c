/*
 * door PORT: runs commands for the host.
 *
 * A connection carries one command: its line, then whatever its standard input shall be (until the host closes its
 * direction). Back come "PID n\n", n being also its process group; then what the command writes; and when it has ended,
 * "\nEXIT n\n", n being its exit code or 128 and the signal. The connection closes when the last process that holds it ends.
 *
 * The line "files PATH..." is answered by the door itself, with what is in them: an emulated machine is slow to start programs.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 64 << 10 };

/* Reads up to the newline, which must come; nothing behind it is taken. */
static int read_line(int from, char *line)
{
	for (size_t used = 0; used < LINE_MAX_BYTES; used++) {
		if (read(from, line + used, 1) != 1)
			return 0;
		if (line[used] == '\n') {
			line[used] = 0;
			return 1;
		}
	}
	return 0;
}

/* Copies files to the connection; the exit code. */
static int show(int connection, char *paths)
{
	static char some[64 << 10];
	int missing = 0;

	for (char *path = strtok(paths, " "); path; path = strtok(NULL, " ")) {
		int file = open(path, O_RDONLY);
		ssize_t got;

		while (file >= 0 && (got = read(file, some, sizeof some)) > 0)
			if (write(connection, some, got) != got)
				return 1;
		if (file < 0)
			missing = 1;
		else
			close(file);
	}
	return missing;
}

static void serve(int connection)
{
	static char line[LINE_MAX_BYTES];
	int status = 0;

	if (!read_line(connection, line))
		return;
	if (strncmp(line, "files ", 6) == 0) {
		dprintf(connection, "PID 0\n");
		dprintf(connection, "\nEXIT %d\n", show(connection, line + 6));
		return;
	}
	pid_t child = fork();
	if (child == 0) {
		setsid();
		dprintf(connection, "PID %d\n", getpid());
		for (int fd = 0; fd < 3; fd++)
			dup2(connection, fd);
		close(connection);
		signal(SIGPIPE, SIG_DFL);
		execl("/bin/sh", "sh", "-c", line, (char *)NULL);
		_exit(127);
	}
	waitpid(child, &status, 0);
	dprintf(connection, "\nEXIT %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

int main(int count, char **words)
{
	struct sockaddr_in here = { .sin_family = AF_INET, .sin_port = htons(count > 1 ? atoi(words[1]) : 7777) };
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;

	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
	if (bind(listener, (struct sockaddr *)&here, sizeof here) || listen(listener, 64)) {
		perror("door");
		return 1;
	}
	signal(SIGPIPE, SIG_IGN);
	puts("interop: the door is open");
	fflush(stdout);
	for (;;) {
		int connection = accept(listener, NULL, NULL);

		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
		if (connection < 0)
			continue;
		setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
		if (fork() == 0) {
			serve(connection);
			_exit(0);
		}
		close(connection);
	}
}
