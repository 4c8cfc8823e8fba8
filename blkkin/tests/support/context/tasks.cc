/*
 * Asynchronous tasks in C++: coroutines that move between the threads of a pool, each with its own span.
 * Inside it are spans that an exception leaves, spans that move along, and threads that are started in one.
 * As in writer.c, each call's offset encodes its span.
 *
 * tasks FILE GO TASKS HOPS
 *
 * Warm-up: calls for the span WARM_UP until the file GO exists. At the end it prints the number of calls
 * with a span ("below") and without one ("none").
 */
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <coroutine>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <future>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "thread_context.h"

extern "C" {
__attribute__((visibility("default"))) thread_local record *otel_thread_ctx_v1 = nullptr;
}

namespace {

constexpr long WARM_UP = 1L << 40 | 1;
constexpr int THREADS = 4;

int file;
std::atomic<long> with_span, without_span;

void call(long span)
{
	char byte;

	if (span != WARM_UP)
		(span ? with_span : without_span)++;
	if (pread(file, &byte, 1, span) < 0)
		std::abort();
}

/* Never inlined: a coroutine may resume in another thread, whose slot has another address. */
__attribute__((noinline)) record *publish(record *now)
{
	record *volatile *slot = &otel_thread_ctx_v1;
	record *previous = *slot;

	std::atomic_signal_fence(std::memory_order_seq_cst);
	*slot = now;
	std::atomic_signal_fence(std::memory_order_seq_cst);
	return previous;
}

/* Publishes a span for this thread until the end of the scope. */
class Scope {
	record own;
	record *outer;

public:
	explicit Scope(long span)
	{
		fill(&own, span);
		outer = publish(&own);
	}
	~Scope() { publish(outer); }
	Scope(const Scope &) = delete;
	Scope &operator=(const Scope &) = delete;
};

struct Task {
	struct promise_type {
		/* Record of the span that the task is in. */
		record *now = nullptr;

		Task get_return_object() { return {}; }
		std::suspend_never initial_suspend() { return {}; }
		std::suspend_never final_suspend() noexcept { return {}; }
		void return_void();
		void unhandled_exception() { std::terminate(); }
	};
};

using Handle = std::coroutine_handle<Task::promise_type>;

std::mutex lock;
std::condition_variable changed;
std::deque<Handle> ready;
long open_tasks;

/* Suspends the task; any thread of the pool resumes it. */
struct Hop {
	bool await_ready() { return false; }
	void await_suspend(Handle task)
	{
		/* Cleared first, because another thread may end the task before this call returns. */
		publish(nullptr);
		std::lock_guard<std::mutex> held(lock);
		ready.push_back(task);
		changed.notify_one();
	}
	void await_resume() {}
};

/* Sets the span of the task, in whichever thread it resumes. */
struct EnterSpan {
	record *span;

	bool await_ready() { return false; }
	bool await_suspend(Handle task)
	{
		task.promise().now = span;
		publish(span);
		return false;
	}
	void await_resume() {}
};

void Task::promise_type::return_void()
{
	publish(nullptr);
	std::lock_guard<std::mutex> held(lock);
	if (--open_tasks == 0)
		changed.notify_all();
}

void fails(long span)
{
	Scope inside(span);

	call(span);
	throw std::runtime_error("out of it");
}

Task work(long number, int hops)
{
	long span = number << 20 | 1;
	record inner, own;

	co_await Hop{};
	fill(&own, span);
	co_await EnterSpan{&own};
	for (int i = 0; i < hops; i++) {
		call(span);
		try {
			fails(span + 1);
		} catch (const std::runtime_error &) {
			call(span);
		}
		co_await Hop{};
		call(span);
		fill(&inner, span + 2 * (i + 1));
		co_await EnterSpan{&inner};
		call(span + 2 * (i + 1));
		co_await Hop{};
		call(span + 2 * (i + 1));
		co_await EnterSpan{&own};
	}
	if (number % 16 == 0) {
		/* A new thread has no span, even if a traced task started it, until it publishes one. */
		std::async(std::launch::async, [span] {
			call(0);
			Scope scope(span);
			call(span);
		}).get();
	}
	call(span);
}

void pool()
{
	for (;;) {
		std::unique_lock<std::mutex> held(lock);

		changed.wait(held, [] { return !ready.empty() || open_tasks == 0; });
		if (ready.empty())
			return;
		Handle task = ready.front();
		ready.pop_front();
		held.unlock();
		publish(task.promise().now);
		task.resume();
		publish(nullptr);
		call(0);
	}
}

}

int main(int count, char **args)
{
	if (count < 5 || (file = open(args[1], O_RDONLY)) < 0)
		return 2;
	{
		Scope waiting(WARM_UP);

		do {
			call(WARM_UP);
			usleep(500);
		} while (access(args[2], F_OK));
	}
	open_tasks = std::atol(args[3]);
	for (long number = 1, all = open_tasks; number <= all; number++)
		work(number, std::atoi(args[4]));
	std::vector<std::thread> threads;
	for (int i = 0; i < THREADS; i++)
		threads.emplace_back(pool);
	for (auto &thread : threads)
		thread.join();
	std::printf("below %ld none %ld\n", with_span.load(), without_span.load());
	return 0;
}
