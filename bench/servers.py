"""Two throwaway servers, sessions with them, and what they use.

Nothing here knows what is measured, or why.
"""

import os
import selectors
import subprocess
import time

MARK = '=== end of result ==='
TICKS = os.sysconf('SC_CLK_TCK')


class Failure(Exception):
	"""What stops the benchmark; its text is for whoever runs it."""


def literal(text):
	return "'" + str(text).replace("'", "''") + "'"


# --- the kernel's books ---

class ProcessTimes:
	"""A line of /proc/<pid>/stat: CPU seconds and the parent."""

	def __init__(self, pid):
		with open(f'/proc/{pid}/stat', encoding='utf-8', errors='replace') as f:
			fields = f.read().rpartition(')')[2].split()
		self.parent = int(fields[1])
		self.own = (int(fields[11]) + int(fields[12])) / TICKS
		self.children = (int(fields[13]) + int(fields[14])) / TICKS


def cpu_of(pid):
	"""CPU seconds of a live process, 0 of one that has ended."""
	try:
		return ProcessTimes(pid).own
	except (FileNotFoundError, ProcessLookupError):
		return 0.0


def children_of(pid):
	"""The pids of the live children of a process without threads."""
	try:
		with open(f'/proc/{pid}/task/{pid}/children', encoding='ascii') as f:
			return [int(child) for child in f.read().split()]
	except FileNotFoundError:
		pass
	found = []
	for name in os.listdir('/proc'):
		if name.isdigit():
			try:
				if ProcessTimes(name).parent == pid:
					found.append(int(name))
			except (FileNotFoundError, ProcessLookupError):
				pass
	return found


def title_of(pid):
	try:
		with open(f'/proc/{pid}/cmdline', 'rb') as f:
			return f.read().replace(b'\0', b' ').decode(errors='replace')
	except (FileNotFoundError, ProcessLookupError):
		return ''


def private_memory_of(pid):
	"""RssAnon in kB, 0 of a process that has ended."""
	try:
		with open(f'/proc/{pid}/status', encoding='utf-8') as f:
			for line in f:
				if line.startswith('RssAnon:'):
					return int(line.split()[1])
	except (FileNotFoundError, ProcessLookupError):
		pass
	return 0


# --- servers ---

class Server:
	"""A cluster of our own, reached through a socket in the directory."""

	def __init__(self, name, directory, bindir, port):
		self.name = name
		self.directory = directory
		self.bindir = bindir
		self.port = port
		self.data = os.path.join(directory, name)
		self.log_file = os.path.join(directory, name + '.log')
		self.pid = None

	def program(self, name):
		return os.path.join(self.bindir, name)

	def run(self, *command):
		done = subprocess.run(
			command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
			stderr=subprocess.STDOUT, text=True, check=False)
		if done.returncode != 0:
			raise Failure(f'{os.path.basename(command[0])} failed:\n{done.stdout}')
		return done.stdout

	def create(self, settings):
		self.run(self.program('initdb'), '--no-sync', '-A', 'trust',
			'-U', 'postgres', '--locale=C.UTF-8', '-E', 'UTF8', '-D', self.data)
		with open(os.path.join(self.data, 'postgresql.conf'), 'a',
				encoding='utf-8') as f:
			f.write(f"port = {self.port}\n"
				"listen_addresses = ''\n"
				f"unix_socket_directories = '{self.directory}'\n"
				"include = 'bench.conf'\n")
		self.configure(settings)

	def configure(self, settings):
		"""All settings beyond the stock ones; they need a start."""
		with open(os.path.join(self.data, 'bench.conf'), 'w',
				encoding='utf-8') as f:
			for name, value in settings.items():
				f.write(f'{name} = {literal(value)}\n')

	def start(self):
		with open(self.log_file, 'a', encoding='utf-8') as log:
			done = subprocess.run(
				[self.program('pg_ctl'), 'start', '-w', '-s', '-t', '600',
					'-D', self.data],
				stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False)
		if done.returncode != 0:
			raise Failure(f'the {self.name} does not start:\n{self.log_end()}')
		with open(os.path.join(self.data, 'postmaster.pid'),
				encoding='utf-8') as f:
			self.pid = int(f.readline())

	def stop(self):
		if self.pid is not None:
			self.run(self.program('pg_ctl'), 'stop', '-w', '-s', '-m', 'fast',
				'-t', '600', '-D', self.data)
			self.pid = None

	def restart(self, settings):
		"""With other settings, and all that was written before on disk."""
		self.stop()
		self.run('sync', '-f', self.data)
		self.configure(settings)
		self.start()

	def psql_command(self, database, *options):
		return [self.program('psql'), '-X', '-q', '-A', '-t',
			'-v', 'ON_ERROR_STOP=1', '-h', self.directory, '-p', str(self.port),
			'-U', 'postgres', '-d', database, *options]

	def sql(self, database, *commands):
		"""Each command in a transaction of its own; what they printed."""
		options = [word for c in commands for word in ('-c', c)]
		return self.run(*self.psql_command(database, *options)).strip()

	def pgbench(self, database, *options):
		return self.run(self.program('pgbench'), '-h', self.directory,
			'-p', str(self.port), '-U', 'postgres', *options, database)

	def log_size(self):
		return os.path.getsize(self.log_file)

	def log_since(self, offset):
		with open(self.log_file, encoding='utf-8', errors='replace') as f:
			f.seek(offset)
			return f.read()

	def log_end(self):
		return '\n'.join(self.log_since(0).splitlines()[-20:])

	def workers(self):
		"""Private memory, in kB, of each process that can synchronize."""
		return [private_memory_of(pid) for pid in children_of(self.pid)
			if title_of(pid).startswith(
				('postgres: reuse_sync worker', 'postgres: logical replication worker'))]

	def cpu(self, without=()):
		"""CPU seconds of the server since its start, ended processes and all.

		What has ended is in the books of the postmaster; one that ends while
		we count would be counted twice or not at all, so we count again.
		"""
		while True:
			before = ProcessTimes(self.pid)
			live = sum(cpu_of(pid) for pid in children_of(self.pid))
			after = ProcessTimes(self.pid)
			if before.children == after.children:
				return (after.own + after.children + live
					- sum(cpu_of(pid) for pid in without))


class Session:
	"""A connection that stays open: psql, answering one request at a time."""

	def __init__(self, server, database):
		self.name = f'session with the {server.name}'
		self.psql = subprocess.Popen(
			server.psql_command(database, '-v', 'VERBOSITY=terse'),
			stdin=subprocess.PIPE, stdout=subprocess.PIPE,
			stderr=subprocess.STDOUT)
		self.buffer = b''
		self.waiting = selectors.DefaultSelector()
		self.waiting.register(self.psql.stdout, selectors.EVENT_READ)
		self.pid = int(self.query('SELECT pg_backend_pid()'))

	def send(self, sql):
		self.psql.stdin.write(f'{sql};\n\\echo {MARK}\n'.encode())
		self.psql.stdin.flush()

	def result(self, timeout=None):
		"""The answer to what was sent; None if there is none in time."""
		end = f'{MARK}\n'.encode()
		until = None if timeout is None else time.monotonic() + timeout
		while self.buffer != end and not self.buffer.endswith(b'\n' + end):
			left = None if until is None else max(0, until - time.monotonic())
			if not self.waiting.select(left):
				return None
			piece = os.read(self.psql.stdout.fileno(), 65536)
			if piece == b'':
				raise Failure(f'{self.name}: {self.buffer.decode().strip()}')
			self.buffer += piece
		text = self.buffer.decode()
		self.buffer = b''
		return text[:text.rindex(MARK)].strip()

	def query(self, sql):
		self.send(sql)
		return self.result()

	def close(self):
		self.psql.stdin.close()
		self.psql.wait()
		self.psql.stdout.close()
		self.waiting.close()


def wait_until(condition, what, timeout, pause=0.05):
	"""Wait for a condition of the other processes that nobody tells us of."""
	until = time.monotonic() + timeout
	while not condition():
		if time.monotonic() > until:
			raise Failure(f'after {timeout} s still waiting for {what}')
		time.sleep(pause)
