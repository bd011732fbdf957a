"""The lead's side of a federation over NVFlare: submits the job, shows its rounds, and resubmits it if it dies."""

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from filelock import FileLock, Timeout
from nvflare.apis.job_def import JobMetaKey, RunStatus
from nvflare.fuel.flare_api import api_spec
from nvflare.fuel.flare_api.flare_api import Session
from nvflare.fuel.hci.proto import MetaKey, MetaStatusValue

from fedlit.core.errors import ConfigError, TrainingError
from fedlit.sites.hosting import Ending
from fedlit.sites.link import Link
from fedlit.sites.messages import new_run, printable
from fedlit.sites.submission import JOB, TOPIC, Lead, Submission, write_job

LOOK = 0.5
"""Seconds between two checks of a job."""

SIDEWARD = 5
"""Seconds between two checks whether sites have lost the job."""

STARTING, LOADING = 60, 600
"""Seconds that a submitted job has to start (NVFlare retries at growing intervals), and then to answer."""

STRANDED = 3
"""Number of times in a row that a connected site must be seen without the job before it counts as stranded."""

STOPPING = 600
"""Seconds that a round may take if the job has to end; then the job is aborted, and the round repeated."""

GONE = 5
"""Seconds without an answer after which a job counts as gone, although NVFlare still calls it running."""

ENDING = 60
"""Seconds that a job may take to end if no round has to finish."""

ATTEMPTS = 5
"""Number of times that a run is resubmitted without progress."""

ENDED = tuple(status.value for status in RunStatus if status.value.startswith("FINISHED"))
"""NVFlare's statuses of a job that has ended."""


@dataclass
class Watched:
    """A watched job."""

    id: str  # NVFlare's id.
    began: float = field(default_factory=time.monotonic)  # When it was submitted.
    seen: int = 0  # Number of its lines that were shown.
    report: dict[str, Any] = field(default_factory=dict)  # Its last progress report.
    gone: float | None = None  # Since when the server answers that it does not run.
    without: dict[str, int] = field(default_factory=dict)  # How often in a row each connected site was seen without it.
    stopping: float | None = None  # When it was asked to end after its round.
    lost: list[str] = field(default_factory=list)  # Sites that cannot answer it any more.
    cut: bool = False  # Whether this command has aborted it.
    looked: float = 0.0  # When sites were last checked.


class Supervisor:
    """Supervisor of a lead's run, which resubmits its job if a part of the federation dies."""

    def __init__(self, lead: Lead, submission: Submission, say: Callable[[str], None]) -> None:
        self._lead, self._submission = lead, submission
        self._say: Callable[[str], None] = lambda line: say(printable(line))
        self._link = Link(lead, self._say)
        self._run = "" if submission.resumes else new_run()
        self._asked_to_stop = False
        self._job: Watched | None = None
        self._lock: FileLock | None = None

    def run(self) -> Ending:
        """Submit, watch and resubmit until the run has ended; a job that already runs it is only watched.

        Raises:
            TrainingError: If the run cannot continue; names the reason.
            ConfigError: If the server does not accept the lead or the job, or another command watches the run.
            KeyboardInterrupt: After a second Ctrl-C, which aborts the job.
        """
        try:
            return self._supervise()
        except (KeyboardInterrupt, SystemExit):
            self._say(self._left())
            raise
        finally:
            self._link.close()
            self._let_go()

    def _supervise(self) -> Ending:
        most_progress, fruitless = -1, 0
        if self._run:
            self._hold(self._run)
        job = self._found()
        while True:
            if job is None:
                self._wait_for_sites()
                job = Watched(self._submit())
            self._job = job
            try:
                ending = self._watch(job)
            except (ConfigError, KeyboardInterrupt):
                with suppress(ConfigError):
                    self._abort(job)
                raise
            if ending is not None and ending.kind == "failed":
                raise TrainingError(ending.reason)
            if ending is not None and (ending.kind == "finished" or self._asked_to_stop):
                return ending
            if self._asked_to_stop:
                return Ending("stopped")
            self._wait_for_end(job)
            if not job.cut and self._status(job) == RunStatus.FINISHED_ABORTED.value:
                raise TrainingError("the job was aborted with NVFlare's own commands; to resume, use --ckpt_path last")
            self._run = job.report.get("run") or self._run
            progress = int(job.report.get("kept", 0))
            most_progress, fruitless = max(most_progress, progress), 0 if progress > most_progress else fruitless + 1
            if fruitless > ATTEMPTS:
                reason = ending.reason if ending else "see the logs of the server and of the sites"
                raise TrainingError(f"the job has ended {fruitless} times without a new checkpoint: {reason}")
            self._say("the run resumes from its last checkpoint, in a new job")
            job = self._job = None

    def _found(self) -> Watched | None:
        """Return the lead's job that is running the run to resume; None if there is none."""
        if self._submission.resumes is None:
            return None
        asked = {"since": 0, "means": {"experiment": self._submission.resumes}}
        for job in map(Watched, self._at_work()):
            while (report := self._command(job, asked)) is None or report["means"] is None:
                status = self._status(job)
                died = status == RunStatus.RUNNING.value and job.gone and time.monotonic() - job.gone > STARTING
                if status in ENDED or died or (report and report["ended"]):
                    break
                time.sleep(LOOK)
            if report and report["means"]:
                if not self._hold(report["run"]):
                    raise ConfigError(
                        f"--sites {self._lead.folder}: another command is watching this run; wait until it ends, or "
                        f"end it"
                    )
                self._say(
                    "a job is running this run: watching it; it keeps the configuration with which it was submitted"
                )
                return job
        return None

    def _at_work(self) -> list[str]:
        """Return the ids of this lead's jobs that have not ended, the newest first."""
        while (jobs := self._link.ask(lambda session: session.list_jobs(detailed=True, reverse=True))) is None:
            time.sleep(LOOK)
        of_lead = [job for job in jobs if job.get(JobMetaKey.SUBMITTER_NAME.value) == self._lead.user]
        return [
            job[JobMetaKey.JOB_ID.value]
            for job in of_lead
            if job.get(JobMetaKey.JOB_NAME.value) == JOB and job.get(JobMetaKey.STATUS.value) not in ENDED
        ]

    def _hold(self, run: str) -> bool:
        """Lock a run against other commands of this lead, which would also resubmit it; return whether it worked."""
        if self._lock is None:
            lock = FileLock(self._lead.folder / f".fedlit-{run}.lock")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                return False
            except OSError:  # the folder is read-only
                return True
            self._lock = lock
        return True

    def _let_go(self) -> None:
        if self._lock is not None:
            with suppress(OSError):
                Path(self._lock.lock_file).unlink()
            self._lock.release()

    def _left(self) -> str:
        """Return a message about what happens to the run if this command ends before it."""
        job, onward = self._job, "the same command with --ckpt_path last"
        if job is None:
            return f"this command has not seen a job of its run, but one may be running. To check: {onward}"
        if job.cut and job.gone is None and self._status(job) not in ENDED:
            return f"the server does not answer, so the job may or may not continue. To check and to resume: {onward}"
        if job.cut:
            return f"the job was aborted. To resume from the last checkpoint: {onward}"
        return f"the job continues, but nobody resubmits it if it dies. To watch it again, or to end it: {onward}"

    def _wait_for_sites(self) -> None:
        said: set[str] | None = None
        while True:
            info = self._link.ask(lambda session: session.get_system_info())
            if info is not None:
                missing = set(self._lead.sites) - {client.name for client in info.client_info}
                if not missing:
                    return
                if missing != said:
                    self._say(f"waiting for {', '.join(sorted(missing))}")
                said = missing
            time.sleep(LOOK)

    def _submit(self) -> str:
        """Submit a job exactly once, even if the server dies meanwhile; return its id."""
        token = uuid4().hex
        with tempfile.TemporaryDirectory(prefix="fedlit-job-") as folder:
            path = write_job(Path(folder) / "fedlit", self._lead.sites, self._run, self._submission)
            while True:
                try:
                    job = self._link.ask(lambda session: session.submit_job(str(path), submit_token=token))
                except api_spec.InvalidJobDefinition as error:
                    raise ConfigError(f"the server does not accept the job: {error}") from error
                if job is not None:
                    return job
                time.sleep(LOOK)

    def _watch(self, job: Watched) -> Ending | None:
        """Watch a job to its end; return None if it died without a report."""
        while True:
            try:
                if (ending := self._follow(job)) is not None:
                    return ending
                status = self._status(job)
                if status in ENDED:
                    self._say(f"the job has ended: {status}")
                    return None
                if self._is_over(job, status):
                    self._abort(job)
                    return None
                time.sleep(LOOK)
            except KeyboardInterrupt:
                if self._asked_to_stop:
                    raise
                self._asked_to_stop = True
                self._say("stopping after this round; Ctrl-C again aborts it")
                self._stop(job)

    def _follow(self, job: Watched) -> Ending | None:
        """Show what a job has printed; return how its run ended, or None while it runs."""
        asked = {"since": job.seen} | ({"stop": True, "lost": job.lost} if job.stopping is not None else {})
        report = self._command(job, asked)
        if report is None:
            return None
        for line in report["lines"]:
            self._say(line)
        job.seen += len(report["lines"])
        job.report = report
        if report["run"]:
            self._hold(report["run"])
        if report["ended"] is None:
            return None
        self._command(job, {"since": job.seen, "heard": True})
        if report["ended"]["kind"] == "away":
            self._say(report["ended"]["reason"])
        return Ending(**report["ended"])

    def _command(self, job: Watched, asked: dict[str, Any]) -> dict[str, Any] | None:
        """Send a command to the job; return None if it does not run, or has not answered."""

        def ask(session: Session) -> dict[str, Any] | None:
            try:
                report = session.do_app_command(job.id, TOPIC, asked)
            except (api_spec.JobNotRunning, api_spec.JobNotFound):
                job.gone = job.gone or time.monotonic()
                return None
            except (api_spec.NoReply, api_spec.InternalError, RuntimeError):  # the job is starting or busy
                return None
            job.gone = None
            return report

        return self._link.ask(ask)

    def _status(self, job: Watched) -> str | None:
        """Return NVFlare's status of the job; None if the server does not answer."""

        def ask(session: Session) -> str:
            try:
                return str(session.get_job_meta(job.id).get("status"))
            except api_spec.JobNotFound:
                return RunStatus.ABANDONED.value

        return self._link.ask(ask)

    def _is_over(self, job: Watched, status: str | None) -> bool:
        """Return whether a job must be aborted: it does not start, or does not end on request."""
        now = time.monotonic()
        if status is None:
            job.looked = now  # a server that has just restarted does not know its sites yet
            return False
        running = status == RunStatus.RUNNING.value
        job.gone = job.gone if running else None
        if job.report and job.gone is not None and now - job.gone > GONE:
            self._say(f"the server no longer runs the job ({status})")
            return True
        if not job.report:
            if now - job.began <= (LOADING if running else STARTING):
                return False
            self._say(f"the job does not start ({status})")
            return True
        if job.stopping is not None and now - job.stopping > STOPPING:
            self._say(f"the round has not ended after {STOPPING} s and is aborted")
            return True
        if job.stopping is None and now - job.looked > SIDEWARD:
            job.looked = now
            if stranded := self._stranded(job):
                self._say(f"{', '.join(stranded)} reconnected without the job; restarting the job after this round")
                self._stop(job, stranded)
        return False

    def _stranded(self, job: Watched) -> list[str]:
        """Return connected sites that have been without the job for a while: NVFlare does not give it back to them."""

        def ask(session: Session) -> list[dict[str, Any]] | None:
            try:
                return session.get_client_job_status()
            except api_spec.NoClientsAvailable:
                return None

        jobs: dict[str, set[str]] = {}
        for row in self._link.ask(ask) or ():  # one row per job of a site
            if row.get(MetaKey.STATUS) not in (MetaStatusValue.NO_REPLY, MetaStatusValue.ERROR):
                jobs.setdefault(row.get(MetaKey.CLIENT_NAME, ""), set()).add(row.get(MetaKey.JOB_ID, ""))
        for name in self._lead.sites:
            without = name in jobs and job.id not in jobs[name]
            job.without[name] = job.without.get(name, 0) + 1 if without else 0
        return sorted(name for name, times in job.without.items() if times >= STRANDED)

    def _stop(self, job: Watched, lost: Sequence[str] = ()) -> None:
        """Ask a job to end after its round, without sites that cannot answer any more."""
        job.stopping, job.lost = time.monotonic(), list(lost)
        self._command(job, {"since": job.seen, "stop": True, "lost": job.lost})

    def _abort(self, job: Watched) -> None:
        """Abort a job, and wait until it is gone."""
        job.cut = True
        if self._link.ask(lambda session: _abort(session, job.id)):
            self._wait_for_end(job)

    def _wait_for_end(self, job: Watched) -> None:
        """Wait until a job has ended; abort it if it does not end."""
        began = time.monotonic()
        while self._status(job) not in ENDED and job.gone is None and time.monotonic() - began < ENDING:
            self._command(job, {"since": job.seen})
            if not job.cut and time.monotonic() - began > ENDING / 2:
                job.cut = True
                self._link.ask(lambda session: _abort(session, job.id))
            time.sleep(LOOK)


def _abort(session: Session, job: str) -> bool:
    with suppress(api_spec.JobNotRunning, api_spec.JobNotFound, api_spec.InternalError):
        session.abort_job(job)
    return True
