/* CHECK(condition, ...): if the condition is false, prints a sentence to standard error and exits with code 1. */
#pragma once
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, strerror(errno)); \
			exit(1); \
		} \
	} while (0)
