/*-------------------------------------------------------------------------
 *
 * delay.c
 *	  A proxy that stands for a long way to a server: what goes in at one end
 *	  comes out at the other so many milliseconds later, in both directions.
 *
 * usage: delay LISTEN TARGET MILLISECONDS
 *
 * LISTEN and TARGET are the paths of Unix-domain sockets.  The program runs
 * until it gets a signal.
 *
 * Each direction of a connection is a delay line: every piece that arrives is
 * put into a queue together with the time at which it is due, and leaves when
 * that time has come.  Any number of pieces are on their way at once, so the
 * way is long but not narrow.  The end of a direction takes its time as well.
 *
 * A direction stops reading when MOST_BYTES of it are on their way: what this
 * allows, MOST_BYTES in the time of the delay, is far more than a server sends.
 * Opening a connection takes no time of its own, as if nothing had to go to
 * and fro before the first byte.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  bench/delay.c
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define PIECE_BYTES		65536
#define MOST_BYTES		(64 * 1024 * 1024)

/* Bytes that arrived together, and when they are due, in ns. */
typedef struct Piece
{
	struct Piece *next;
	int64_t		due;
	size_t		length;			/* 0: the end of the direction */
	size_t		sent;
	char		bytes[];
} Piece;

/* One direction of a connection */
typedef struct Line
{
	struct Connection *connection;
	int			from;
	int			to;
	Piece	   *first;
	Piece	   *last;
	size_t		bytes;			/* on their way */
	bool		read_all;		/* the end has come in */
	bool		ended;			/* and has gone out */
	bool		blocked;		/* "to" takes no more for now */
	bool		dead;			/* "to" will never take any more */
} Line;

typedef struct Connection
{
	struct Connection *next;
	struct Connection *prev;
	Line		line[2];		/* line[i] is from end[i]'s socket */
	struct End
	{
		struct Connection *connection;
		int			fd;
		uint32_t	events;		/* that epoll is asked for */
		bool		gone;		/* closed there, and epoll not asked any more */
	}			end[2];
} Connection;

typedef struct End End;

static int64_t delay_ns;
static int	epoll_fd;
static int	timer_fd;
static int	listen_fd;
static const char *target_path;
static Connection all = {.next = &all, .prev = &all};

static void fail(const char *format,...) __attribute__((noreturn, format(printf, 1, 2)));

static void
fail(const char *format,...)
{
	va_list		args;
	int			saved_errno = errno;

	va_start(args, format);
	fputs("delay: ", stderr);
	vfprintf(stderr, format, args);
	fprintf(stderr, ": %s\n", strerror(saved_errno));
	va_end(args);
	exit(1);
}

static int64_t
now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t) t.tv_sec * 1000000000 + t.tv_nsec;
}

static void *
allocate(size_t size)
{
	void	   *p = malloc(size);

	if (p == NULL)
		fail("malloc");
	return p;
}

/* --- one direction --- */

static void
put_piece(Line *line, Piece *piece)
{
	piece->next = NULL;
	piece->sent = 0;
	piece->due = now_ns() + delay_ns;
	if (line->last != NULL)
		line->last->next = piece;
	else
		line->first = piece;
	line->last = piece;
	line->bytes += piece->length;
}

static void
drop_piece(Line *line)
{
	Piece	   *piece = line->first;

	line->first = piece->next;
	if (line->first == NULL)
		line->last = NULL;
	line->bytes -= piece->length;
	free(piece);
}

/* Take in what has arrived, as far as there is room. */
static void
read_line(Line *line)
{
	static char buffer[PIECE_BYTES];

	while (!line->read_all && line->bytes < MOST_BYTES)
	{
		ssize_t		n = recv(line->from, buffer, sizeof(buffer), MSG_DONTWAIT);
		Piece	   *piece;

		if (n < 0)
		{
			if (errno == EINTR)
				continue;
			if (errno == EAGAIN || errno == EWOULDBLOCK)
				return;
			n = 0;				/* reset: nothing else will come */
		}
		piece = allocate(sizeof(Piece) + (size_t) n);
		piece->length = (size_t) n;
		memcpy(piece->bytes, buffer, (size_t) n);
		put_piece(line, piece);
		line->read_all = n == 0;
	}
}

/* Send what is due. */
static void
write_line(Line *line, int64_t now)
{
	line->blocked = false;
	while (line->first != NULL && line->first->due <= now)
	{
		Piece	   *piece = line->first;
		ssize_t		n;

		if (piece->length == 0)
		{
			(void) shutdown(line->to, SHUT_WR);
			line->ended = true;
			drop_piece(line);
			continue;
		}
		if (line->dead)
		{
			drop_piece(line);
			continue;
		}
		n = send(line->to, piece->bytes + piece->sent,
				 piece->length - piece->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n < 0)
		{
			if (errno == EINTR)
				continue;
			line->blocked = errno == EAGAIN || errno == EWOULDBLOCK;
			line->dead = !line->blocked;
			if (line->dead)
				continue;
			return;
		}
		piece->sent += (size_t) n;
		if (piece->sent == piece->length)
			drop_piece(line);
	}
}

/* --- connections --- */

static void
watch(End *end, int operation, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.ptr = end};

	if (operation == EPOLL_CTL_MOD && (end->gone || events == end->events))
		return;
	if (epoll_ctl(epoll_fd, operation, end->fd, &event) < 0)
		fail("epoll_ctl");
	end->events = events;
}

/* Have epoll tell what either socket is waited for. */
static void
watch_connection(Connection *c)
{
	for (int i = 0; i < 2; i++)
	{
		uint32_t	events = 0;

		if (!c->line[i].read_all && c->line[i].bytes < MOST_BYTES)
			events |= EPOLLIN;
		if (c->line[1 - i].blocked)
			events |= EPOLLOUT;
		watch(&c->end[i], EPOLL_CTL_MOD, events);
	}
}

static void
close_connection(Connection *c)
{
	for (int i = 0; i < 2; i++)
	{
		while (c->line[i].first != NULL)
			drop_piece(&c->line[i]);
		close(c->end[i].fd);
	}
	c->prev->next = c->next;
	c->next->prev = c->prev;
	free(c);
}

static int
connect_target(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int			fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		fail("socket");
	strcpy(address.sun_path, target_path);	/* its length was checked */
	if (connect(fd, (struct sockaddr *) &address, sizeof(address)) < 0)
	{
		close(fd);
		return -1;
	}
	return fd;
}

static void
accept_connection(void)
{
	int			fd[2];
	Connection *c;

	fd[0] = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
	if (fd[0] < 0)
		return;					/* it has changed its mind */
	fd[1] = connect_target();
	if (fd[1] < 0)
	{
		close(fd[0]);			/* the server is not there: nor are we */
		return;
	}
	c = allocate(sizeof(Connection));
	memset(c, 0, sizeof(Connection));
	c->next = all.next;
	c->prev = &all;
	c->next->prev = c;
	all.next = c;
	for (int i = 0; i < 2; i++)
	{
		c->line[i].connection = c;
		c->line[i].from = fd[i];
		c->line[i].to = fd[1 - i];
		c->end[i].connection = c;
		c->end[i].fd = fd[i];
		watch(&c->end[i], EPOLL_CTL_ADD, EPOLLIN);
	}
}

/* --- all of them --- */

/* Send all that is due, and have the timer tell when the next will be. */
static void
serve_all(void)
{
	struct itimerspec timer;
	int64_t		now = now_ns();
	int64_t		next = 0;

	for (Connection *c = all.next, *after; c != &all; c = after)
	{
		after = c->next;
		for (int i = 0; i < 2; i++)
		{
			write_line(&c->line[i], now);
			if (c->end[i].gone)
				read_line(&c->line[i]);
		}
		if (c->line[0].ended && c->line[1].ended)
		{
			close_connection(c);
			continue;
		}
		for (int i = 0; i < 2; i++)
		{
			Line	   *line = &c->line[i];

			if (line->first != NULL && !line->blocked &&
				(next == 0 || line->first->due < next))
				next = line->first->due;
		}
		watch_connection(c);
	}
	memset(&timer, 0, sizeof(timer));
	timer.it_value.tv_sec = next / 1000000000;
	timer.it_value.tv_nsec = next % 1000000000;
	if (timerfd_settime(timer_fd, TFD_TIMER_ABSTIME, &timer, NULL) < 0)
		fail("timerfd_settime");
}

static void
handle(const struct epoll_event *event)
{
	End		   *end = event->data.ptr;

	if (end == NULL)
		accept_connection();
	else if (event->data.ptr == &timer_fd)
	{
		uint64_t	ignored;

		if (read(timer_fd, &ignored, sizeof(ignored)) < 0 && errno != EAGAIN)
			fail("timerfd");
	}
	else
	{
		Connection *c = end->connection;
		int			i = end == &c->end[0] ? 0 : 1;

		if (event->events & (EPOLLIN | EPOLLHUP | EPOLLERR))
			read_line(&c->line[i]);
		if (event->events & (EPOLLHUP | EPOLLERR))
		{
			/* Epoll would say so all the time. */
			watch(end, EPOLL_CTL_DEL, 0);
			end->gone = true;
		}
	}
}

static void
add_to_epoll(int fd, void *what)
{
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = what};

	if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0)
		fail("epoll_ctl");
}

static void
start_listening(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	if (strlen(path) >= sizeof(address.sun_path) ||
		strlen(target_path) >= sizeof(address.sun_path))
	{
		errno = ENAMETOOLONG;
		fail("%s", path);
	}
	strcpy(address.sun_path, path);
	listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (listen_fd < 0 ||
		bind(listen_fd, (struct sockaddr *) &address, sizeof(address)) < 0 ||
		listen(listen_fd, SOMAXCONN) < 0)
		fail("%s", path);
}

int
main(int argc, char **argv)
{
	char	   *end;
	double		ms;

	if (argc != 4)
	{
		fputs("usage: delay LISTEN TARGET MILLISECONDS\n", stderr);
		return 2;
	}
	ms = strtod(argv[3], &end);
	if (*end != '\0' || end == argv[3] || !(ms >= 0 && ms < 60000))
	{
		fprintf(stderr, "delay: not a number of milliseconds: %s\n", argv[3]);
		return 2;
	}
	delay_ns = (int64_t) (ms * 1e6);
	target_path = argv[2];

	/* The kernel may not be late on purpose. */
	if (prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL) < 0)
		fail("prctl");
	epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (epoll_fd < 0 || timer_fd < 0)
		fail("epoll or timerfd");
	start_listening(argv[1]);
	add_to_epoll(listen_fd, NULL);
	add_to_epoll(timer_fd, &timer_fd);

	for (;;)
	{
		struct epoll_event events[64];
		int			n = epoll_wait(epoll_fd, events, 64, -1);

		if (n < 0 && errno != EINTR)
			fail("epoll_wait");
		for (int i = 0; i < n; i++)
			handle(&events[i]);
		serve_all();
	}
}
