/*
 * A program with two probes, for tests: each turn begins with its number, reads one byte at that number, and ends.
 *
 * The notes are written by hand, as systemtap's sys/sdt.h makes them, so that the arguments lie where the test wants them: in
 * registers, in memory at a register, in the instruction.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define NOTE(name, semaphore, arguments)                                                             \
    "990: nop\n"                                                                                     \
    ".pushsection .note.stapsdt,\"\",\"note\"\n.balign 4\n"                                          \
    ".4byte 992f-991f, 994f-993f, 3\n991: .asciz \"stapsdt\"\n992: .balign 4\n"                      \
    "993: .8byte 990b, _.stapsdt.base, " semaphore "\n"                                              \
    ".asciz \"turns\"\n.asciz \"" name "\"\n.asciz \"" arguments "\"\n994: .balign 4\n.popsection\n" \
    ".ifndef _.stapsdt.base\n"                                                                       \
    ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"                          \
    ".weak _.stapsdt.base\n.hidden _.stapsdt.base\n_.stapsdt.base: .space 1\n"                       \
    ".size _.stapsdt.base, 1\n.popsection\n.endif\n"

/* Tracers count it up while somebody listens. */
__attribute__((section(".probes"), used)) unsigned short turns_begin_semaphore;

static void __attribute__((noinline)) begin(uint64_t number, const char *words)
{
    int32_t minus = -(int32_t)number;
    volatile int32_t here[2] = {0, minus};
    if (turns_begin_semaphore)
        __asm__ volatile(NOTE("begin", "turns_begin_semaphore", "8@%0 -4@%1 8@%2 -4@%3 4@$7")
                         : : "r"(number), "r"(minus), "r"(words), "m"(here[1]));
}

static void __attribute__((noinline)) end(uint64_t number)
{
    __asm__ volatile(NOTE("end", "0", "8@%0") : : "r"(number));
}

/* turns FILE TURNS [CYCLE: of so many, sleep 60 ms after the first hundred, and after the last] */
int main(int count, char **words)
{
    /* On the stack: a page that nobody has touched is not read at a probe. */
    char byte, text[] = "some words";
    int file = open(words[1], O_RDONLY);
    long turns = atol(words[2]), cycle = count > 3 ? atol(words[3]) : 0, failed = 0;
    for (long turn = 0; turn < turns; turn++) {
        begin(turn, text);
        failed += pread(file, &byte, 1, turn) != 1;
        end(turn);
        /* Between two turns: below none. */
        failed += pread(file, &byte, 1, turns + turn) != 1;
        if (cycle && (turn % cycle == 99 || turn % cycle == cycle - 1))
            usleep(60000);
    }
    printf("%d %ld\n", turns_begin_semaphore, failed);
    return failed != 0;
}
