/*
 * What may lie between the storage manager and its files, for tests: loaded before the C library
 * (LD_PRELOAD), it encrypts what the server, and nobody else in its process, writes to files below
 * a folder "encrypted", and decrypts what it reads there.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define KEY 0x5a

static int
is_encrypted(int fd, void *caller)
{
	char		link[64];
	char		path[4096];
	ssize_t		len;
	Dl_info		who;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	len = readlink(link, path, sizeof(path) - 1);
	if (len < 0)
		return 0;
	path[len] = 0;
	return strstr(path, "/encrypted/") && dladdr(caller, &who) && !strstr(who.dli_fname, "pgsluice.so");
}

static void
change(char *bytes, ssize_t len)
{
	for (ssize_t i = 0; i < len; i++)
		bytes[i] ^= KEY;
}

static ssize_t
write_vectors(int fd, const struct iovec *from, int n, off_t at, void *caller)
{
	static ssize_t (*next) (int, const struct iovec *, int, off_t);
	struct iovec whole = {0};
	char	   *to;
	ssize_t		done;

	if (!next)
		next = dlsym(RTLD_NEXT, "pwritev");
	if (!is_encrypted(fd, caller))
		return next(fd, from, n, at);
	for (int i = 0; i < n; i++)
		whole.iov_len += from[i].iov_len;
	to = whole.iov_base = malloc(whole.iov_len);
	if (!to)
		abort();
	for (int i = 0; i < n; to += from[i++].iov_len)
		memcpy(to, from[i].iov_base, from[i].iov_len);
	change(whole.iov_base, whole.iov_len);
	done = next(fd, &whole, 1, at);
	free(whole.iov_base);
	return done;
}

static ssize_t
read_vectors(int fd, const struct iovec *to, int n, off_t at, void *caller)
{
	static ssize_t (*next) (int, const struct iovec *, int, off_t);
	ssize_t		done;
	ssize_t		left;

	if (!next)
		next = dlsym(RTLD_NEXT, "preadv");
	left = done = next(fd, to, n, at);
	if (done > 0 && is_encrypted(fd, caller))
		for (int i = 0; i < n && left > 0; left -= to[i++].iov_len)
			change(to[i].iov_base, left < (ssize_t) to[i].iov_len ? left : (ssize_t) to[i].iov_len);
	return done;
}

#define CALLER __builtin_return_address(0)
#define ONE(buf, len) &(struct iovec) {(void *) (buf), (len)}, 1

ssize_t pwritev(int fd, const struct iovec *from, int n, off_t at) { return write_vectors(fd, from, n, at, CALLER); }
ssize_t pwritev64(int fd, const struct iovec *from, int n, off_t at) { return write_vectors(fd, from, n, at, CALLER); }
ssize_t pwrite(int fd, const void *from, size_t len, off_t at) { return write_vectors(fd, ONE(from, len), at, CALLER); }
ssize_t pwrite64(int fd, const void *from, size_t len, off_t at) { return write_vectors(fd, ONE(from, len), at, CALLER); }
ssize_t preadv(int fd, const struct iovec *to, int n, off_t at) { return read_vectors(fd, to, n, at, CALLER); }
ssize_t preadv64(int fd, const struct iovec *to, int n, off_t at) { return read_vectors(fd, to, n, at, CALLER); }
ssize_t pread(int fd, void *to, size_t len, off_t at) { return read_vectors(fd, ONE(to, len), at, CALLER); }
ssize_t pread64(int fd, void *to, size_t len, off_t at) { return read_vectors(fd, ONE(to, len), at, CALLER); }
