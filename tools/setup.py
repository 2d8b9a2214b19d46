"""Make a checkout ready to work: virtual environment, packages, Java 17, Toxiproxy.

Run by `make setup`.

Uses the standard library only and syntax that old interpreters can parse, so that a too old
`python3` gets a sentence instead of a SyntaxError. Does nothing when nothing changed.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
VENV_PYTHON = os.path.join(VENV, "bin", "python")
READY = os.path.join(VENV, ".octavo-ready")
TOXIPROXY = os.path.join(VENV, "bin", "toxiproxy-server")
TOXIPROXY_SOURCE = "github.com/Shopify/toxiproxy/v2/cmd/server@v2.12.0"
PYTHON_MIN = (3, 11)
JAVA_MIN = 17


def say(text):
    """Progress goes to stderr."""
    sys.stderr.write("setup: " + text + "\n")
    sys.stderr.flush()


def fail(cause, hint):
    """Leave with one line saying what happened and one saying what to do."""
    sys.stderr.write("setup: error: " + cause + "\nsetup: hint: " + hint + "\n")
    raise SystemExit(1)


def run(command, why, **options):
    """Run a command with its output hidden unless it fails."""
    began = time.monotonic()
    say(why)
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        **options,
    )
    if done.returncode != 0:
        sys.stderr.write(done.stdout.decode("utf-8", "replace"))
        return False
    took = time.monotonic() - began
    if took > 5:
        say("  done in {:.0f} s".format(took))  # noqa: UP032
    return True


def use_new_enough_python():
    """Continue under a newer interpreter from PATH when this one is too old."""
    if sys.version_info >= PYTHON_MIN:
        return
    for minor in range(20, PYTHON_MIN[1] - 1, -1):
        found = shutil.which("python3.%d" % minor)  # noqa: UP031
        if found:
            os.execv(found, [found, *sys.argv])
    fail(
        "Python %d.%d is too old" % sys.version_info[:2],  # noqa: UP031
        "install Python 3.11 or newer, or run `make setup PYTHON=/path/to/python3.11`",
    )


def on_debian_as_root():
    """Whether packages may simply be installed here."""
    return shutil.which("apt-get") is not None and os.geteuid() == 0


def apt_install(package):
    """Install one Debian package; False when that did not work."""
    env = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    if not run(["apt-get", "update", "-qq"], "apt-get update", env=env):
        return False
    return run(
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package],
        "apt-get install " + package,
        env=env,
    )


def make_venv():
    """Create .venv when it is missing."""
    if os.path.exists(VENV_PYTHON):
        return
    command = [sys.executable, "-m", "venv", VENV]
    if run(command, "creating .venv with Python " + sys.version.split()[0]):
        return
    if on_debian_as_root() and apt_install("python3-venv") and run(command, "creating .venv again"):
        return
    fail("the virtual environment could not be created", "on Debian: apt-get install python3-venv")


def install_packages():
    """Install Octavo in editable mode with everything that development needs."""
    pip = [VENV_PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if not run([*pip, "-e", ROOT + "[dev]"], "installing packages (a few minutes the first time)"):
        fail("pip could not install the packages", "check that a package index is reachable")


def java_major():
    """Major version of `java` on PATH, or 0."""
    java = shutil.which("java")
    if java is None:
        return 0
    said = subprocess.run([java, "-version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    match = re.search(r'version "(\d+)', said.stdout.decode("utf-8", "replace"))
    return int(match.group(1)) if match else 0


def ensure_java():
    """Spark and the ZooKeeper of the tests need Java 17."""
    if java_major() >= JAVA_MIN:
        return
    if on_debian_as_root() and apt_install("openjdk-17-jre-headless") and java_major() >= JAVA_MIN:
        return
    say("note: no Java 17 found: tests of Spark and ZooKeeper cannot run")
    say("note: install a Java 17 runtime (Debian: openjdk-17-jre-headless) and run `make setup`")


def ensure_toxiproxy():
    """Build the Toxiproxy server with Go where Go is present (spec faults R10)."""
    if os.path.exists(TOXIPROXY):
        return
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin:/usr/lib/go/bin")
    if go is None:
        say("note: no Go found: tests through Toxiproxy cannot run")
        say("note: install Go 1.22+ or put toxiproxy-server 2.12 on PATH and run `make setup`")
        return
    with tempfile.TemporaryDirectory() as folder:
        env = dict(os.environ, GOBIN=folder)
        if run([go, "install", TOXIPROXY_SOURCE], "building toxiproxy-server 2.12", env=env):
            shutil.move(os.path.join(folder, "server"), TOXIPROXY)
        else:
            say("note: toxiproxy-server could not be built: tests through Toxiproxy cannot run")


def wanted():
    """What the stamp must say for nothing to be done."""
    digest = hashlib.sha256()
    for name in ("pyproject.toml", os.path.join("tools", "setup.py")):
        with open(os.path.join(ROOT, name), "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def main():
    """Do what is missing, then leave a stamp."""
    use_new_enough_python()
    stamp = wanted()
    if os.path.exists(READY) and os.path.exists(VENV_PYTHON):
        with open(READY) as file:
            if file.read().strip() == stamp:
                os.utime(READY)
                return 0
    make_venv()
    install_packages()
    ensure_java()
    ensure_toxiproxy()
    with open(READY, "w") as file:
        file.write(stamp + "\n")
    say("ready: `make demo`, `make test`, or `.venv/bin/octavo up`")
    return 0


if __name__ == "__main__":
    sys.exit(main())
