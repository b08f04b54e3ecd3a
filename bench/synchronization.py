"""A synchronization, measured from a subscriber just started to its end.

A second subscription, ready before it starts, has a table into which a row,
a beat, is inserted all the time; each row tells when it was sent and when it
was applied.
"""

import re
import time

from cases import OURS
from servers import Failure, Session, literal, wait_until
from stage import LOAD_CLIENTS


class Synchronization:
	def __init__(self, stage, case, side, options):
		self.stage = stage
		self.case = case
		self.ours = side == OURS
		self.publisher = stage.publisher
		self.subscriber = stage.subscriber
		self.timeout = options.timeout
		self.beat_ms = options.beat_ms
		self.load_rate = options.load_rate
		self.publisher_db = 'bench_' + case.shape
		self.port = stage.start_proxy(case) if case.delay_ms else self.publisher.port
		self.pub = Session(self.publisher, self.publisher_db)
		self.sub = Session(self.subscriber, 'run')
		self.opener = Session(self.publisher, self.publisher_db)
		self.beat = None
		self.beat_started = None
		self.load = None
		self.load_pids = []
		self.peak_slots = 0
		self.peak_memory = 0
		self.commit_at = None     # when the open transaction is to end
		self.committed_at = None

	def measure(self, row):
		self.subscribe_to_beat()
		self.start_load()
		self.wait_for_cold_pool()
		for server in (self.publisher, self.subscriber):
			server.sql('postgres', 'CHECKPOINT')
		self.wait_for_launcher()

		own_slots = int(self.pub.query('SELECT count(*) FROM pg_replication_slots'))
		log_offset = self.publisher.log_size()
		wal = self.wal_position()
		cpu = self.cpu()
		self.synchronize(row)
		self.wait_for_fixed_beats()
		self.wait_for_quiet(own_slots + (0 if self.case.adds else 1))
		row['cpu_publisher'], row['cpu_subscriber'] = (
			round(now - then, 2) for now, then in zip(self.cpu(), cpu))
		row['wal_bytes'] = self.wal_position() - wal
		row['peak_slots'] = self.peak_slots - own_slots - (0 if self.case.adds else 1)
		row['slots_created'] = len(re.findall(
			r'received replication command: CREATE_REPLICATION_SLOT',
			self.publisher.log_since(log_offset))) - (0 if self.case.adds else 1)
		self.sample_memory()
		row['worker_rss_kb'] = self.peak_memory
		if self.committed_at is not None:
			row['after_open_seconds'] = round(
				self.started + row['seconds_r'] - self.committed_at, 3)
		self.end_load(row)
		self.read_beats(row)
		self.check_contents()
		self.end()

	# --- before ---

	def connection(self, port):
		return literal(self.stage.conninfo(self.case, port))

	def subscribe_to_beat(self):
		"""What is ready before.  Tables may be added to it."""
		if not (self.beat_ms or self.case.adds):
			return
		port, publications = self.publisher.port, 'beat'
		if self.case.adds:
			port, publications = self.port, 'beat, bench'
			self.pub.query('ALTER PUBLICATION bench DROP TABLES IN SCHEMA bench')
		self.sub.query(f'''CREATE SUBSCRIPTION beat
			CONNECTION {self.connection(port)}
			PUBLICATION {publications} WITH (copy_data = false)''')
		self.pub.query('INSERT INTO beat DEFAULT VALUES')
		wait_until(lambda: self.sub.query('SELECT count(*) > 0 FROM beat') == 't',
			'the first beat', 60)
		self.beat_started = time.monotonic()

	def wait_for_launcher(self):
		"""The server starts one apply worker per wal_retrieve_retry_interval.

		The time of the beat's is not to be that of the next.
		"""
		if self.beat_started is not None and not self.case.adds:
			interval = float(self.sub.query("""SELECT setting::float8 / 1000
				FROM pg_settings WHERE name = 'wal_retrieve_retry_interval'"""))
			time.sleep(max(0, self.beat_started + interval + 0.2
				- time.monotonic()))

	def start_load(self):
		if self.beat_ms:
			self.beat = Session(self.publisher, self.publisher_db)
			self.beat.send(f'''DO $$ BEGIN LOOP
				INSERT INTO beat DEFAULT VALUES;
				COMMIT;
				PERFORM pg_sleep({self.beat_ms / 1000});
				END LOOP; END $$''')
		if self.case.load:
			self.load = self.stage.helper([self.publisher.program('pgbench'),
				'-n', '-c', str(LOAD_CLIENTS), '-T', '1000000',
				'-R', str(self.load_rate), '-h', self.publisher.directory,
				'-p', str(self.publisher.port), '-U', 'postgres',
				self.publisher_db])
			wait_until(self.load_is_on, 'pgbench', 60)
			self.load_started = self.load_count()
			self.load_started_at = time.time()

	def load_is_on(self):
		self.load_pids = [int(pid) for pid in self.pub.query(
			"SELECT pid FROM pg_stat_activity WHERE application_name = 'pgbench'"
			).split()]
		return len(self.load_pids) == LOAD_CLIENTS

	def load_count(self):
		return int(self.pub.query('SELECT count(*) FROM pgbench_history'))

	def wait_for_cold_pool(self):
		if self.ours:
			wait_until(lambda: self.sub.query(
				"SELECT count(*) = 0 FROM reuse_sync.workers"
				" WHERE worker_type <> 'launcher'") == 't',
				'the pool to be cold', 60)

	def wal_position(self):
		return int(self.sub.query(
			"SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"))

	def cpu(self):
		"""Of both servers, but for our own sessions and for the load."""
		clients = [self.pub.pid, self.opener.pid, *self.load_pids]
		if self.beat is not None:
			clients.append(self.beat.pid)
		return (self.publisher.cpu(clients), self.subscriber.cpu([self.sub.pid]))

	# --- the synchronization ---

	def synchronize(self, row):
		if self.case.adds:
			self.pub.query('ALTER PUBLICATION bench ADD TABLES IN SCHEMA bench')
		self.started = time.time()
		if self.case.adds:
			self.sub.query('ALTER SUBSCRIPTION beat REFRESH PUBLICATION')
		else:
			self.sub.query(f'''CREATE SUBSCRIPTION bench
				CONNECTION {self.connection(self.port)} PUBLICATION bench''')
		row['command_seconds'] = round(time.time() - self.started, 3)
		self.open_transaction()
		self.watch(row)

	def open_transaction(self):
		if self.case.open_s:
			self.opener.query('BEGIN; INSERT INTO opened VALUES (1)')
			self.commit_at = time.time() + self.case.open_s

	def watch(self, row):
		"""Look at the states, the more rarely the longer it takes.

		That makes the times exact to about a fiftieth.
		"""
		subid = self.sub.query(f'''SELECT oid FROM pg_subscription
			WHERE subname = '{'beat' if self.case.adds else 'bench'}' ''')
		state = f'''SELECT CASE
			WHEN EXISTS (SELECT FROM pg_subscription_rel WHERE srsubid = {subid}
				AND srsubstate NOT IN ('s', 'r')) THEN 'i'
			WHEN EXISTS (SELECT FROM pg_subscription_rel WHERE srsubid = {subid}
				AND srsubstate <> 'r') THEN 's'
			ELSE 'r' END'''
		publisher_due = 0.0
		while True:
			now = time.time()
			elapsed = now - self.started
			found = self.sub.query(state)
			now = time.time()
			if found in 'sr' and row['seconds_s'] == '':
				row['seconds_s'] = round(now - self.started, 3)
			if found == 'r':
				row['seconds_r'] = round(now - self.started, 3)
				return
			if now >= publisher_due:
				self.sample_publisher()
				self.sample_memory()
				publisher_due = now + min(max(elapsed / 20, 0.02), 0.25)
			self.end_transaction_if_due()
			if elapsed > self.timeout:
				raise Failure(f'not ready after {self.timeout} s:\n'
					+ self.subscriber.log_end())
			time.sleep(min(max(elapsed / 50, 0.01), 0.2))

	def end_transaction_if_due(self):
		if self.commit_at is not None and time.time() >= self.commit_at:
			self.opener.query('COMMIT')
			self.committed_at = time.time()
			self.commit_at = None

	def sample_publisher(self):
		self.peak_slots = max(self.peak_slots, int(
			self.pub.query('SELECT count(*) FROM pg_replication_slots')))

	def sample_memory(self):
		self.peak_memory = max([self.peak_memory, *self.subscriber.workers()])

	# --- after ---

	def wait_for_fixed_beats(self):
		"""As many beats for every side, however long it took."""
		if self.case.beats and self.beat is not None:
			wait_until(lambda: int(self.sub.query(f'''SELECT count(*) FROM beat
				WHERE sent >= to_timestamp({self.started!r})''')) >= self.case.beats,
				'the beats', self.timeout, pause=0.5)

	def wait_for_quiet(self, slots):
		"""The end of all the work: no slot and no worker is left of it."""
		def is_quiet():
			self.end_transaction_if_due()
			if int(self.pub.query(
					'SELECT count(*) FROM pg_replication_slots')) != slots:
				return False
			if self.commit_at is not None:
				return False
			return self.sub.query('''SELECT count(*) = 0 FROM pg_stat_subscription
				WHERE relid IS NOT NULL AND pid IS NOT NULL''') == 't'

		wait_until(is_quiet, 'the slots to be dropped', 120)

	def end_load(self, row):
		if self.load is not None:
			if self.load.poll() is not None:
				raise Failure(f'pgbench failed:\n{self.load.communicate()[0]}')
			row['load_tps'] = round((self.load_count() - self.load_started)
				/ (time.time() - self.load_started_at), 1)
			self.load.terminate()
			self.load.communicate()

	def read_beats(self, row):
		if self.beat is None:
			return
		self.pub.query(f'SELECT pg_terminate_backend({self.beat.pid}, 10000)')
		last = self.pub.query('SELECT max(id) FROM beat')
		wait_until(lambda: self.sub.query(
			f'SELECT count(*) > 0 FROM beat WHERE id = {last}') == 't',
			'the last beat', 120)
		summary = '''SELECT count(*) || ' ' || coalesce(max(ms), 0) || ' '
				|| coalesce(percentile_disc(0.99) WITHIN GROUP (ORDER BY ms), 0)
			FROM (SELECT round(extract(epoch FROM received - sent) * 1000, 1) AS ms
				FROM beat WHERE sent >= to_timestamp(%r) %s) AS b'''
		row['beats'], row['beat_worst_ms'], row['beat_p99_ms'] = self.sub.query(
			summary % (self.started, 'AND sent <= to_timestamp(%r)'
				% (self.started + row['seconds_r']))).split()
		if self.case.beats:
			row['fixed_beats'], row['fixed_worst_ms'], row['fixed_p99_ms'] = (
				self.sub.query(summary % (self.started,
					f'ORDER BY id LIMIT {self.case.beats}')).split())

	def check_contents(self):
		"""No figure for a result that is wrong."""
		case = self.case
		ready = int(self.sub.query('''SELECT count(*) FROM pg_subscription_rel r
			JOIN pg_class c ON c.oid = r.srrelid
			WHERE c.relnamespace = 'bench'::regnamespace AND srsubstate = 'r' '''))
		if ready != case.tables:
			raise Failure(f'{ready} tables are ready, not {case.tables}')
		# a transaction for each, for the sake of the lock table
		self.sub.query(f'''DO $$
			DECLARE
				t regclass;
				n bigint;
			BEGIN
				FOR t IN SELECT oid FROM pg_class
					WHERE relnamespace = 'bench'::regnamespace AND relkind = 'r'
				LOOP
					EXECUTE 'SELECT count(*) FROM ' || t INTO n;
					IF n <> {case.rows} THEN
						RAISE '% has % rows, not {case.rows}', t, n;
					END IF;
					COMMIT;
				END LOOP;
			END $$''')

	def end(self):
		for name in self.sub.query('SELECT subname FROM pg_subscription').split():
			self.sub.query(f'DROP SUBSCRIPTION {name}')
		wait_until(lambda: self.pub.query(
			'SELECT count(*) = 0 FROM pg_replication_slots') == 't',
			'the publisher to have no slot', 120)
		for session in (self.pub, self.sub, self.opener):
			session.close()
		if self.beat is not None:
			self.beat.close()
