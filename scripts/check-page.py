#!/usr/bin/env python3
"""Uses the page of a running `ropewalk serve` in headless Chromium, in light and dark mode, at desktop width and on a phone.

    scripts/check-page.py [--key KEY] [--shots DIR] http://127.0.0.1:8080/

Sends a message, reads the answer, stops another, runs self-tests, and looks at the plan, the map, and the labels. Fails if the page
asks another server, breaks its policy, is wider than its window, or makes markup of a text. With --shots, saves screenshots there.
The stopped answer runs under the last method of the server, whose --ctx should be some ten thousand tokens, and the self-tests under
the first. Needs chromium and chromium-driver.
"""
import argparse
import base64
import json
import pathlib
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
SHIFT, ENTER, ESCAPE, RELEASE = "\ue008", "\ue007", "\ue00c", "\ue000"
SECONDS = 120
TEST_SECONDS = 1800
# What a message may consist of.
ALLOWED = {"LI", "H3", "P", "PRE", "CODE", "DETAILS", "SUMMARY"}
MARKUP = "<b>bold</b><img src=x onerror=alert(1)>"


class Browser:
    def __init__(self, width, height, scheme):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.driver = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL)
        self.at = f"http://127.0.0.1:{port}"
        # Containers have no user namespaces for Chromium's sandbox.
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        options = {"goog:chromeOptions": {"args": flags}, "goog:loggingPrefs": {"browser": "ALL"}}
        until(lambda: self.ask("GET", "/status")["ready"])
        session = self.ask("POST", "/session", {"capabilities": {"alwaysMatch": options}})
        self.at += f"/session/{session['sessionId']}"
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.tools("Emulation.setDeviceMetricsOverride", metrics)
        self.tools("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})

    def ask(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.at + path, data, {"content-type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as e:
            raise SystemExit(f"check-page: {path}: {json.load(e)['value']['message']}") from None

    def tools(self, command, params):
        return self.ask("POST", "/goog/cdp/execute", {"cmd": command, "params": params})

    def run(self, script):
        return self.ask("POST", "/execute/sync", {"script": script, "args": []})

    def find(self, css):
        return [e[ELEMENT] for e in self.ask("POST", "/elements", {"using": "css selector", "value": css})]

    def type(self, css, text):
        self.ask("POST", f"/element/{self.find(css)[0]}/value", {"text": text})

    def click(self, css):
        self.ask("POST", f"/element/{self.find(css)[0]}/click", {})

    def close(self):
        self.ask("DELETE", "")
        self.driver.terminate()
        self.driver.wait()


def until(so, seconds=SECONDS):
    end = time.monotonic() + seconds
    while True:
        try:
            if so():
                return
        except (urllib.error.URLError, ConnectionError):
            pass
        if time.monotonic() > end:
            raise SystemExit(f"check-page: expected within {seconds} s: {so.__code__.co_names}")
        time.sleep(0.05)


def check(browser, options, shot):
    faults = []

    def expect(what, so):
        if not so:
            faults.append(what)

    def state():
        return browser.run("return document.getElementById('state').textContent")

    def wide():
        return browser.run("const r = document.documentElement; return r.scrollWidth - r.clientWidth")

    def choose(index):
        return browser.run(f"const p = document.getElementById('plan'); p.selectedIndex = {index}; "
                           "p.dispatchEvent(new Event('change')); return p.value")

    browser.ask("POST", "/url", {"url": options.url})
    if options.key:
        until(lambda: browser.run("return !document.getElementById('entry').hidden"))
        browser.type("#key", "wrong" + ENTER)
        until(lambda: browser.run("return document.getElementById('refused').textContent"))
        shot("key")
        browser.run("document.getElementById('key').value = ''")
        browser.type("#key", options.key + ENTER)
    until(lambda: browser.run("return document.getElementById('model').textContent"))
    expect("the key is hidden when it is known", browser.run("return document.getElementById('key').value === ''"))
    is_narrow = browser.run("return getComputedStyle(document.getElementById('side')).display === 'none'")
    panel = (lambda: browser.click("#toggle")) if is_narrow else (lambda: None)
    expect("wider than its window when it is empty", wide() <= 0)
    shot("empty")
    panel()
    browser.type("#most", "24")
    panel()
    browser.type("#text", "one" + SHIFT + ENTER + RELEASE + MARKUP + ENTER)
    until(lambda: state() == "Done")
    said = browser.run("return document.querySelector('li.user p').textContent")
    expect(f"another message: {said}", said.split("\n")[:2] == ["one", MARKUP])
    tags = set(browser.run("return [...document.querySelectorAll('#log *')].map(e => e.tagName)"))
    expect(f"markup in messages: {tags - ALLOWED}", tags <= ALLOWED)
    about = browser.run("return document.querySelector('li.assistant .about').textContent")
    expect(f"nothing about the answer: {about}", "of prompt" in about and "of answer" in about)
    expect("no focus in the message after an answer", browser.run("return document.activeElement.id === 'text'"))
    expect("wider than its window with an answer", wide() <= 0)
    shot("answer")
    panel()
    expect("no length of the request", browser.run("return !document.getElementById('window').hidden"))
    browser.click("#mapped summary")
    expect("a panel without room", browser.run("return document.getElementById('side').clientHeight > innerHeight / 2"))
    words = "return document.getElementById('said').textContent"
    until(lambda: browser.run(words))
    browser.click("#costs summary")
    until(lambda: browser.find("#surprise span"))
    browser.click("#kept summary")
    until(lambda: "tokens" in browser.run("return document.getElementById('slots').textContent"))
    until(lambda: browser.run("return document.getElementById('running').textContent") != "-")
    first = choose(1)
    until(lambda: not browser.run("return document.getElementById('test').disabled"))
    browser.type("#test", ENTER)
    tested = "return document.getElementById('tested').textContent"
    expect(f"no self-test under {first}: {browser.run(tested)}", browser.run(tested) == f"Testing {first}")
    expect("a second self-test", browser.run("return document.getElementById('test').disabled"))
    expect("wider than its window with a self-test", wide() <= 0)
    shot("testing")
    # At full length it takes minutes.
    if is_narrow:
        browser.click("#halt")
    until(lambda: browser.run(tested) != f"Testing {first}", TEST_SECONDS)
    expect(f"another end of the self-test: {browser.run(tested)}",
           browser.run(tested) == ("Self-test stopped" if is_narrow else "Self-test done"))
    found = browser.run("return document.getElementById('notes').textContent")
    expect(f"no result of the self-test: {found}", f"{first}: found " in found)
    until(lambda: not browser.run("return document.getElementById('test').disabled"))
    expect("wider than its window with the panel", wide() <= 0)
    shot("panel")
    browser.run("document.getElementById('most').value = ''")
    last = choose("p.options.length - 1")
    panel()
    # An answer may end by itself before it is stopped.
    for n in range(2, 32):
        browser.type("#text", "endless" + ENTER)
        until(lambda: len(browser.find("li.assistant")) == n)
        if n == 2:
            shot("answering")
        press = [{"type": kind, "value": ESCAPE} for kind in ("keyDown", "keyUp")]
        browser.ask("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": press}]})
        until(lambda: state() in ("Stopped", "Done"))
        if state() == "Stopped":
            break
    rope = browser.run("return document.getElementById('rope').textContent")
    expect(f"another plan than {last}: {rope}", rope.split(" (")[0] == last)
    expect(f"Escape does not stop: {state()}", state() == "Stopped")
    browser.click("#fresh")
    expect("messages in a new chat", not browser.find("li.user, li.assistant"))
    panel()
    for css in ["button", "input", "select", "textarea", "progress", "meter", "ol", "aside"]:
        for element in browser.find(css):
            if browser.ask("GET", f"/element/{element}/displayed"):
                name = browser.ask("GET", f"/element/{element}/computedlabel")
                expect(f"a {css} without a name", name.strip())
    origin = browser.run("return location.origin")
    asked = browser.run("return performance.getEntriesByType('resource').map(e => e.name)")
    elsewhere = [name for name in asked if not name.startswith((origin, f"blob:{origin}"))]
    expect(f"asks another server: {elsewhere}", not elsewhere)
    kept = browser.run("return localStorage.length + sessionStorage.length + document.cookie.length")
    expect("keeps something in the browser", kept == 0)
    for line in browser.ask("POST", "/se/log", {"type": "browser"}):
        # A wrong key is an answer of the network, and no fault of the page.
        expect(line["message"], line["source"] == "network" or line["level"] != "SEVERE")
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--key")
    parser.add_argument("--shots", type=pathlib.Path)
    options = parser.parse_args()
    if not shutil.which("chromedriver"):
        sys.exit("check-page: expected chromedriver, found none; try: apt-get install chromium chromium-driver")
    if options.shots:
        options.shots.mkdir(parents=True, exist_ok=True)
    failed = False
    for width, height in [(1280, 900), (390, 844)]:
        for scheme in ["light", "dark"]:
            browser = Browser(width, height, scheme)

            def shot(name):
                if options.shots:
                    picture = base64.b64decode(browser.ask("GET", "/screenshot"))
                    (options.shots / f"{name}-{width}-{scheme}.png").write_bytes(picture)

            try:
                faults = check(browser, options, shot)
            finally:
                browser.close()
            print(f"{options.url}, {width} px, {scheme}: {'; '.join(faults) or 'good'}")
            failed |= bool(faults)
    sys.exit(failed)


if __name__ == "__main__":
    main()
